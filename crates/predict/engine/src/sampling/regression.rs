//! What a page fault adds to a count, by the parts of a stream that were seen. An instruction of each CPU adds what it
//! adds there, a page fault the same on all.

use strata_counters::Count;
use strata_hardware::HardwareCounters;

/// What one CPU did of a part of a stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Point {
    pub(crate) cpu: usize,
    pub(crate) instructions: f64,
    pub(crate) faults: f64,
    pub(crate) count: f64,
}

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
    fn add(&mut self, Point { instructions, faults, count, .. }: Point) {
        self.instructions += instructions;
        self.faults += faults;
        self.faults_squared += faults * faults / instructions;
        self.counts += count;
        self.products += faults * count / instructions;
    }

    /// The same without one point.
    fn without(&self, Point { instructions, faults, count, .. }: Point) -> Self {
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

    /// What tells of page faults: how far they and the count go together, and how far page faults spread.
    fn moments(&self) -> [f64; 2] {
        match self.spread() {
            0.0 => [0.0; 2],
            spread => [self.products - self.faults * self.counts / self.instructions, spread],
        }
    }
}

/// What a page fault adds, where all CPUs together tell this.
fn slope([together, spread]: [f64; 2]) -> f64 {
    if spread > 0.0 { together / spread } else { 0.0 }
}

/// The line of a CPU, of those of all.
fn of_cpu(lines: &mut Vec<Line>, cpu: usize) -> &mut Line {
    lines.resize(lines.len().max(cpu + 1), Line::default());
    &mut lines[cpu]
}

fn sum(lines: &[Line]) -> [f64; 2] {
    let moments = lines.iter().map(Line::moments);
    moments.fold([0.0; 2], |sum, own| [sum[0] + own[0], sum[1] + own[1]])
}

/// What a page fault adds, and its standard error by leaving out each point once (the jackknife; MacKinnon
/// and White, Journal of Econometrics 29, 1985). That of least squares would be too small: what was run whole
/// often has most page faults, and what only it tells of them may not hold for the rest.
pub(crate) fn slope_of(points: &[Point]) -> (f64, f64) {
    let mut lines = Vec::new();
    points.iter().for_each(|point| of_cpu(&mut lines, point.cpu).add(*point));
    let together = sum(&lines);
    let found = slope(together);
    let all = points.len().max(1) as f64;
    let [off, squares] = points.iter().fold([0.0, 0.0], |[sum, squares], point| {
        let line = &lines[point.cpu];
        let (with, without) = (line.moments(), line.without(*point).moments());
        // With one CPU nothing is left of all but what is left of it.
        let left = match lines.len() {
            1 => without,
            _ => [0, 1].map(|at| together[at] - with[at] + without[at]),
        };
        let off = slope(left) - found;
        [sum + off, squares + off * off]
    });
    (found, ((all - 1.0) / all * (squares - off * off / all)).max(0.0).sqrt())
}

/// What a page fault adds to each single count.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Slopes(Vec<Vec<Line>>);

impl Slopes {
    /// What was counted on a CPU.
    pub(crate) fn add(&mut self, cpu: usize, counted: &HardwareCounters, faults: u64) {
        let instructions = counted.instructions as f64;
        if instructions == 0.0 {
            return;
        }
        let mut at = 0;
        counted.visit(&mut |count| {
            if at == self.0.len() {
                self.0.push(Vec::new());
            }
            let (faults, count) = (faults as f64, count as f64);
            of_cpu(&mut self.0[at], cpu).add(Point { cpu, instructions, faults, count });
            at += 1;
        });
    }

    pub(crate) fn of(&self, at: usize) -> f64 {
        self.0.get(at).map_or(0.0, |lines| slope(sum(lines)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(cpu: usize, instructions: f64, faults: f64, [each, fault]: [f64; 2]) -> Point {
        Point { cpu, instructions, faults, count: each * instructions + fault * faults }
    }

    #[test]
    fn a_line_finds_what_page_faults_add() {
        let mut line = Line::default();
        for (instructions, faults) in [(100.0, 0.0), (100.0, 3.0), (300.0, 1.0), (50.0, 7.0)] {
            line.add(part(0, instructions, faults, [2.0, 64.0]));
        }
        let found = slope(line.moments());
        assert!((found - 64.0).abs() < 1e-9, "{found}");
        // As many an instruction everywhere, or none at all: nothing is known of them.
        for faults in [0.0, 0.01] {
            let mut line = Line::default();
            [100.0, 200.0].iter().for_each(|i| line.add(part(0, *i, faults * i, [5.0, 0.0])));
            assert_eq!(slope(line.moments()), 0.0);
        }
        assert_eq!(slope(Line::default().moments()), 0.0);
    }

    /// A CPU with most page faults that does dear instructions: without a line of its own a page fault would seem dear.
    #[test]
    fn instructions_of_each_cpu_add_what_they_add_there() {
        let of = |cpu, faults, each| part(cpu, 100.0, faults, [each, 8.0]);
        let points = [of(0, 1.0, 2.0), of(0, 2.0, 2.0), of(1, 51.0, 70.0), of(1, 53.0, 70.0)];
        let (found, error) = slope_of(&points);
        assert!((found - 8.0).abs() < 1e-9 && error < 1e-6, "{found} {error}");
        let mut slopes = Slopes::default();
        for point in points {
            let instructions = point.instructions as u64;
            let counted =
                HardwareCounters { instructions, walks: point.count as u64, ..Default::default() };
            slopes.add(point.cpu, &counted, point.faults as u64);
        }
        let mut places = Vec::new();
        HardwareCounters { walks: 1, ..Default::default() }.visit(&mut |count| places.push(count));
        let walks = places.iter().position(|count| *count == 1).unwrap();
        assert!((slopes.of(walks) - 8.0).abs() < 1e-9);
    }

    #[test]
    fn what_a_single_part_tells_of_page_faults_is_not_known() {
        let window = |faults| part(0, 100.0, faults, [2.0, 8.0]);
        let windows = [1.0, 2.0, 3.0, 4.0].map(window);
        let (slope, error) = slope_of(&windows);
        assert!((slope - 8.0).abs() < 1e-9 && error < 1e-6, "{slope} {error}");
        // A beginning with most page faults, each of which adds something else.
        let first = part(0, 1000.0, 500.0, [2.0, 64.0]);
        let all: Vec<_> = windows.into_iter().chain([first]).collect();
        let (slope, error) = slope_of(&all);
        assert!(slope > 32.0 && error > (slope - 8.0) / 2.0, "{slope} {error}");
        assert_eq!(slope_of(&[]), (0.0, 0.0));
        assert_eq!(slope_of(&[window(3.0)]).1, 0.0);
    }
}
