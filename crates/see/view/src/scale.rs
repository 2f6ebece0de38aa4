//! From values to places: axes that begin at nought and have round numbers on them.

/// A linear scale from 0.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// The value at the end of the axis.
    pub end: f64,
    /// Where 0 is.
    pub from: f64,
    /// Where `end` is.
    pub to: f64,
    step: f64,
}

impl Scale {
    /// A scale that has room for values up to `most`, with about `ticks` marks.
    pub fn new(most: f64, ticks: usize, from: f64, to: f64) -> Self {
        let most = if most.is_finite() && most > 0.0 { most } else { 1.0 };
        let step = round_step(most / ticks as f64);
        Self { end: (most / step - 1e-9).ceil() * step, from, to, step }
    }

    /// A scale that ends at `most`, wherever that is.
    pub fn exact(most: f64, ticks: usize, from: f64, to: f64) -> Self {
        Self { end: if most > 0.0 { most } else { 1.0 }, ..Self::new(most, ticks, from, to) }
    }

    /// The place of a value.
    pub fn at(&self, value: f64) -> f64 {
        self.from + (value / self.end) * (self.to - self.from)
    }

    /// How long a value is.
    pub fn length(&self, value: f64) -> f64 {
        (value / self.end) * (self.to - self.from)
    }

    /// Round values along the axis.
    pub fn ticks(&self) -> Vec<f64> {
        let number = (self.end / self.step + 1e-9).floor() as usize;
        (0..=number).map(|index| index as f64 * self.step).collect()
    }
}

/// The smallest of 1, 2, 2.5 and 5 times a power of ten that is no smaller.
fn round_step(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0].map(|step| step * power);
    steps.into_iter().find(|step| *step >= least * (1.0 - 1e-9)).unwrap_or(10.0 * power)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_are_round_and_hold_everything() {
        for most in [0.0, 0.003, 0.8, 1.0, 7.0, 99.0, 1234.0, 3.7e9] {
            let scale = Scale::new(most, 5, 0.0, 100.0);
            assert!(scale.at(most) <= 100.0 + 1e-6, "{most}");
            assert!((2..=6).contains(&scale.ticks().len()), "{most}: {:?}", scale.ticks());
        }
        assert_eq!(Scale::new(7.0, 4, 0.0, 80.0).ticks(), [0.0, 2.0, 4.0, 6.0, 8.0]);
        assert_eq!(Scale::exact(100.0, 4, 0.0, 1.0).ticks(), [0.0, 25.0, 50.0, 75.0, 100.0]);
    }
}
