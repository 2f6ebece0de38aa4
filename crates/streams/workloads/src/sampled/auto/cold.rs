//! How far figures may be off as arrays were not warm.

use super::{Auto, FIRST, SMALL};
use crate::sampled::aim::Reach;
use crate::sampled::arrays::LINES_OF_PAGE;
use strata_stream::{Array, Event};
use strata_text::number::count;

impl Auto {
    /// What trials have shown of each array, where it is news.
    pub fn told(&mut self) -> Vec<Event> {
        match std::mem::take(&mut self.is_news) && !self.warming.is_unknown() {
            true => (0..self.aim.reaches.len()).map(|at| self.warmed(at)).collect(),
            false => Vec::new(),
        }
    }

    /// From where on misses of an array count, and how far they are off even so: in all windows, with what each had to warm
    /// up, next to those after the longest warming.
    ///
    /// How far these are off themselves is not to be seen. Longer warming has brought
    /// less and less: no doubling of it, up to what an interval is long, would change more than the last one did.
    fn warmed(&self, at: usize) -> Event {
        let counted = |warm| self.warming.counted(at, warm, self.aim.within);
        let longest = self.warming.longest();
        let (after, _) = counted(self.warm.unwrap_or(longest));
        let seen = self.warmed.iter().map(|(warm, length)| length * counted(*warm).1);
        let seen = seen.sum::<f64>() / self.warmed.values().sum::<f64>().max(1.0);
        let length = self.placed.back().map_or(FIRST, |(placed, _)| placed.length);
        let doublings = (length as f64 / longest as f64).log2().max(1.0);
        let unseen = self.warming.last_excess(at) * doublings;
        let off = |sign: f64| (sign * seen).max(0.0) + (sign * unseen).max(0.0);
        let millionths = |off: f64| (off * 1e6).min(1e9) as u64;
        let [over, under] = [off(1.0).max(self.kept(at)), off(-1.0).max(self.stale(at))];
        let [over, under] = [over, under].map(millionths);
        let array = self.aim.reaches[at].array;
        // No line is used first more than once.
        let guessed = match array {
            Array::LastLevelCache => self.guessed.min(self.pilot.most_guessed()) as u64,
            _ => 0,
        };
        Event::Warmed { array, after, over, under, guessed }
    }

    /// How many more misses an array may have, relative to them, as what it had before a gap is there only if it was used
    /// again, and nobody knows. What a program has not used since a gap, a long trial through, it has hardly used shortly before.
    ///
    /// Of the last-level cache where more is new from one window to the next than it holds: less replaces little of it. Of
    /// a TLB where nobody looked longer.
    fn stale(&self, at: usize) -> f64 {
        let reach = &self.aim.reaches[at];
        let new = self.warming.new_each(at) * self.all();
        let is_replaced = new / self.strata.len() as f64 > reach.entries as f64;
        let may_be = if reach.is_shared() { is_replaced } else { self.is_cheap(at) };
        match may_be && self.exceeds(reach) {
            true => (new / self.misses(at) - 1.0).max(0.0),
            false => 0.0,
        }
    }

    /// How many fewer misses an array may have, relative to them, as the program may have used in gaps what windows see it
    /// use first: of a TLB where nobody looked longer.
    fn kept(&self, at: usize) -> f64 {
        match self.is_cheap(at) && self.exceeds(&self.aim.reaches[at]) {
            true => (1.0 - self.warming.known_each(at) * self.all() / self.misses(at)).max(0.0),
            false => 0.0,
        }
    }

    /// Whether an array is the second-level TLB and its misses cost too little to look longer for them.
    fn is_cheap(&self, at: usize) -> bool {
        let Reach { array, cycles, .. } = self.aim.reaches[at];
        array == Array::L2Tlb && self.misses(at) * cycles < SMALL * self.all_cycles()
    }

    /// Instructions of all intervals that are over.
    fn all(&self) -> f64 {
        self.strata.iter().map(|(length, _)| length).sum()
    }

    /// Misses of an array in all intervals that are over, and one at least.
    fn misses(&self, at: usize) -> f64 {
        self.sum(|misses| misses[at]).max(1.0)
    }

    /// Whether the program uses more than an array holds, as far as is told.
    fn exceeds(&self, reach: &Reach) -> bool {
        let lines = self.pilot.lines();
        let used = if reach.holds_pages() { lines / LINES_OF_PAGE } else { lines };
        used > reach.entries
    }

    /// What a reader must know of the warming.
    pub fn notes(&self) -> Vec<String> {
        let Some(warm) = self.warm else { return Vec::new() };
        let percent = |off: f64| format!("{:.1} % {}", off.abs() * 100.0, more_or_fewer(off));
        let note = match self.warming.needs(warm, &self.aim, self.tolerated) {
            Some((array, off)) if warm == self.warming.longest() => format!(
                "windows had {} instructions to warm up, and that may be too few for the {array}: with half of \
                 them it had {} misses in trials",
                count(warm),
                percent(off)
            ),
            Some((array, off)) => format!(
                "windows had {} instructions to warm up, as the {array} needs: with half of them it had {} \
                 misses in trials",
                count(warm),
                percent(off)
            ),
            None => format!(
                "windows had {} instructions to warm up, which is more than this program needs",
                count(warm)
            ),
        };
        let is_llc = |at: &usize| self.aim.reaches[*at].is_shared();
        let is_stale = (0..self.aim.reaches.len()).filter(is_llc).any(|at| self.stale(at) > 0.0);
        let stale = is_stale.then(|| {
            "between two windows the program uses more lines than the last-level cache holds: whether it has those \
             of earlier windows still is not known, and bounds of its misses reach up to where it has none"
                .to_owned()
        });
        [note].into_iter().chain(stale).collect()
    }
}

fn more_or_fewer(off: f64) -> &'static str {
    if off < 0.0 { "fewer" } else { "more" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampled::auto::TRIED;
    use crate::sampled::auto::tests::{SAMPLING, aim, tried};
    use crate::sampled::trial::New;
    use std::collections::BTreeMap;
    use strata_addr::{Gva, Range};
    use strata_stream::Pid;

    #[test]
    fn misses_count_from_where_their_array_is_warm() {
        let mut auto = Auto::new(SAMPLING, aim(0.02));
        assert_eq!(auto.told(), [], "no trial has shown anything");
        // One of the arrays needs no warming, the other 800 thousand at least.
        let copies = [30.0, 40.0, 50.0, 90.0, 98.0].map(|misses| [100.0, misses]);
        let mut auto = tried(100.0, copies);
        auto.warm = Some(800_000);
        auto.warmed = BTreeMap::from([(800_000, 1e6)]);
        let doublings = (FIRST as f64 / TRIED as f64).log2();
        let off = |seen: f64| ((seen + 0.02 * doublings) * 1e6) as u64;
        let array = Array::L2Tlb;
        assert_eq!(
            auto.told(),
            [
                Event::Warmed {
                    array: Array::LastLevelCache,
                    after: 50_000,
                    over: 0,
                    under: 0,
                    guessed: 0
                },
                Event::Warmed { array, after: 800_000, over: 0, under: off(0.02), guessed: 0 },
            ]
        );
        assert_eq!(auto.told(), [], "it is told once");
        // Half of the windows had 200 thousand.
        auto.warmed = BTreeMap::from([(200_000, 1e6), (800_000, 1e6)]);
        auto.is_news = true;
        let Event::Warmed { under, .. } = auto.told()[1] else { panic!() };
        assert_eq!(under, off((0.02 + 0.5) / 2.0));
    }

    #[test]
    fn what_is_too_much_after_short_warming_is_too_much_after_long() {
        // Each doubling of warming takes a tenth away.
        let copies = [5, 4, 3, 2, 1].map(|copy| [100.0 + 10.0 * f64::from(copy), 0.0]);
        let mut auto = tried(0.0, copies);
        auto.warm = Some(TRIED);
        let doublings = (FIRST as f64 / TRIED as f64).log2();
        let Event::Warmed { after, over, under, .. } = auto.warmed(0) else { panic!() };
        assert_eq!((after, over, under), (TRIED, (0.1 * doublings * 1e6) as u64, 0));
        // An array that misses nothing however long it was warmed up is warm at once.
        let Event::Warmed { after, over, under, .. } = auto.warmed(1) else { panic!() };
        assert_eq!((after, over, under), (50_000, 0, 0));
    }

    /// After a trial in which empty arrays missed so often in 800,000 instructions, of a program that has used so many pages.
    fn tried_empty(misses: [f64; 2], pages: u64) -> Auto {
        let mut auto = tried(0.0, [[100.0, 0.0]; 5]);
        let new = New { instructions: TRIED / 2, misses: misses.to_vec(), pages: 4.0 };
        auto.warming.take(TRIED, Vec::new(), Some(new));
        auto.touched(Pid(0), Range::sized(Gva::new(1 << 32), pages << 12), false);
        auto
    }

    #[test]
    fn lines_of_earlier_windows_may_be_gone_where_windows_are_far_apart() {
        let under = |pages: u64, length: f64, misses: f64| {
            let mut auto = tried_empty([8000.0, 0.0], pages);
            auto.strata = vec![(length, vec![misses, 0.0]); 4];
            let Event::Warmed { under, .. } = auto.warmed(0) else { panic!() };
            auto.warm = Some(TRIED);
            let told = auto.notes().iter().any(|note| note.contains("between two windows"));
            assert_eq!(told, under > 0);
            under
        };
        // A hundredth of instructions uses a new line: 64 Ki lines take 6.6 million. Windows had half as many misses.
        assert_eq!(under(2000, 1e7, 0.005), 1_000_000);
        assert_eq!(under(2000, 1e7, 0.01), 0);
        assert_eq!(under(2000, 6e6, 0.005), 0, "not all is replaced from one to the next");
        assert_eq!(under(500, 1e7, 0.005), 0, "all lines that there are fit");
    }

    /// In a hundred thousand instructions an empty TLB has one page not, in twice as many as it was not used since the gap.
    #[test]
    fn pages_may_have_been_used_in_gaps_or_not() {
        let off = |pages: u64, misses: f64| {
            let mut auto = tried_empty([0.0, 8.0], pages);
            auto.strata = vec![(1e7, vec![0.0, misses * 1e-5]); 4];
            let Event::Warmed { over, under, .. } = auto.warmed(1) else { panic!() };
            [over, under]
        };
        assert_eq!(off(2000, 0.8), [375_000, 250_000]);
        assert_eq!(off(2000, 2.0), [750_000, 0]);
        assert_eq!(off(2000, 0.4), [0, 1_500_000]);
        assert_eq!(off(1000, 0.8), [0, 0], "the TLB has room for all");
        assert_eq!(
            off(2000, 20.0),
            [0, 0],
            "it costs a hundredth of all cycles: trials look for it"
        );
    }
}
