//! What a page fault adds to a count, by the parts of a stream that were seen.

use strata_counters::Count;
use strata_hardware::HardwareCounters;

/// A count made of so much for each instruction and so much for each page fault: weighted least squares, as the
/// variance of a count grows with the instructions it is taken over.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Line {
    instructions: f64,
    faults: f64,
    faults_squared: f64,
    counts: f64,
    products: f64,
}

impl Line {
    /// Instructions, page faults and what was counted.
    fn add(&mut self, [instructions, faults, count]: [f64; 3]) {
        self.instructions += instructions;
        self.faults += faults;
        self.faults_squared += faults * faults / instructions;
        self.counts += count;
        self.products += faults * count / instructions;
    }

    /// The same without one point.
    fn without(&self, [instructions, faults, count]: [f64; 3]) -> Self {
        Self {
            instructions: self.instructions - instructions,
            faults: self.faults - faults,
            faults_squared: self.faults_squared - faults * faults / instructions,
            counts: self.counts - count,
            products: self.products - faults * count / instructions,
        }
    }

    /// How far page faults are from being so many an instruction everywhere.
    fn spread(&self) -> f64 {
        if self.instructions == 0.0 {
            return 0.0;
        }
        let spread = self.faults_squared - self.faults * self.faults / self.instructions;
        // What rounding leaves is nothing.
        if spread > 1e-9 * self.faults_squared { spread } else { 0.0 }
    }

    /// What a page fault adds, and an instruction.
    fn slope(&self) -> (f64, f64) {
        let slope = match self.spread() {
            0.0 => 0.0,
            spread => (self.products - self.faults * self.counts / self.instructions) / spread,
        };
        let rate = match self.instructions {
            0.0 => 0.0,
            all => (self.counts - slope * self.faults) / all,
        };
        (slope, rate)
    }
}

/// What a page fault adds, and its standard error by leaving out each point once (the jackknife; MacKinnon
/// and White, Journal of Econometrics 29, 1985). That of least squares would be too small: what was run whole
/// often has most page faults, and what only it tells of them may not hold for the rest.
pub(crate) fn slope_of(points: &[[f64; 3]]) -> (f64, f64) {
    let mut line = Line::default();
    points.iter().for_each(|point| line.add(*point));
    let slope = line.slope().0;
    let all = points.len().max(1) as f64;
    let [sum, squares] = points.iter().fold([0.0, 0.0], |[sum, squares], point| {
        let off = line.without(*point).slope().0 - slope;
        [sum + off, squares + off * off]
    });
    (slope, ((all - 1.0) / all * (squares - sum * sum / all)).max(0.0).sqrt())
}

/// What a page fault adds to each single count.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Slopes(Vec<Line>);

impl Slopes {
    pub(crate) fn add(&mut self, counted: &HardwareCounters, faults: u64) {
        let instructions = counted.instructions as f64;
        if instructions == 0.0 {
            return;
        }
        let mut at = 0;
        counted.visit(&mut |count| {
            if at == self.0.len() {
                self.0.push(Line::default());
            }
            self.0[at].add([instructions, faults as f64, count as f64]);
            at += 1;
        });
    }

    pub(crate) fn of(&self, at: usize) -> f64 {
        self.0.get(at).map_or(0.0, |line| line.slope().0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_finds_what_page_faults_add() {
        let mut line = Line::default();
        for (instructions, faults) in [(100.0, 0.0), (100.0, 3.0), (300.0, 1.0), (50.0, 7.0)] {
            line.add([instructions, faults, 2.0 * instructions + 64.0 * faults]);
        }
        let (slope, rate) = line.slope();
        assert!((slope - 64.0).abs() < 1e-9 && (rate - 2.0).abs() < 1e-9, "{slope} {rate}");
        // As many an instruction everywhere, or none at all: nothing is known of them.
        for faults in [0.0, 0.01] {
            let mut line = Line::default();
            [100.0, 200.0].iter().for_each(|i| line.add([*i, faults * i, 5.0 * i]));
            assert_eq!(line.slope().0, 0.0);
        }
        assert_eq!(Line::default().slope(), (0.0, 0.0));
    }

    #[test]
    fn what_a_single_part_tells_of_page_faults_is_not_known() {
        let part = |instructions: f64, faults: f64, each: f64| {
            [instructions, faults, 2.0 * instructions + each * faults]
        };
        let windows = [1.0, 2.0, 3.0, 4.0].map(|faults| part(100.0, faults, 8.0));
        let (slope, error) = slope_of(&windows);
        assert!((slope - 8.0).abs() < 1e-9 && error < 1e-6, "{slope} {error}");
        // A beginning with most page faults, each of which adds something else.
        let all: Vec<_> = windows.into_iter().chain([part(1000.0, 500.0, 64.0)]).collect();
        let (slope, error) = slope_of(&all);
        assert!(slope > 32.0 && error > (slope - 8.0) / 2.0, "{slope} {error}");
        assert_eq!(slope_of(&[]), (0.0, 0.0));
        assert_eq!(slope_of(&[part(100.0, 3.0, 8.0)]).1, 0.0);
    }
}
