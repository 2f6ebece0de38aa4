//! Counters that carry their names and meanings.
//!
//! A struct made by [`counters!`] has a field for each thing that is counted. What a report shows
//! under a name of its own has that name beside the field; its meaning is the field's doc comment.
//! So a new counter is one line, and is summed, reported and documented.

/// A counter as reports have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter {
    /// Name.
    pub name: String,
    /// What is counted.
    pub about: &'static str,
    /// How often it happened, or how many there were.
    pub value: u64,
}

/// What a field of a struct of counters can be: one count, or several of one thing.
pub trait Count {
    /// Nothing counted.
    const ZERO: Self;

    /// Adds what another counted.
    fn add(&mut self, other: &Self);

    /// Takes away what was counted up to an earlier moment.
    fn subtract(&mut self, earlier: &Self);

    /// Each single count, in order.
    fn visit(&self, visit: &mut dyn FnMut(u64));

    /// Sets each single count, in the same order.
    fn set(&mut self, next: &mut dyn FnMut() -> u64);
}

/// Counts that a report shows under names of their own.
pub trait Named {
    /// Each count, with a name made of that of the whole.
    fn each(&self, name: &str, visit: &mut dyn FnMut(String, u64));
}

impl Count for u64 {
    const ZERO: Self = 0;

    #[inline]
    fn add(&mut self, other: &Self) {
        *self += other;
    }

    #[inline]
    fn subtract(&mut self, earlier: &Self) {
        *self -= earlier;
    }

    fn visit(&self, visit: &mut dyn FnMut(u64)) {
        visit(*self);
    }

    fn set(&mut self, next: &mut dyn FnMut() -> u64) {
        *self = next();
    }
}

impl Named for u64 {
    fn each(&self, name: &str, visit: &mut dyn FnMut(String, u64)) {
        visit(name.to_owned(), *self);
    }
}

impl<C: Count, const N: usize> Count for [C; N] {
    const ZERO: Self = [C::ZERO; N];

    fn add(&mut self, other: &Self) {
        self.iter_mut().zip(other).for_each(|(sum, counted)| sum.add(counted));
    }

    fn subtract(&mut self, earlier: &Self) {
        self.iter_mut().zip(earlier).for_each(|(sum, counted)| sum.subtract(counted));
    }

    fn visit(&self, visit: &mut dyn FnMut(u64)) {
        self.iter().for_each(|counted| counted.visit(visit));
    }

    fn set(&mut self, next: &mut dyn FnMut() -> u64) {
        self.iter_mut().for_each(|counted| counted.set(next));
    }
}

/// Declares a struct of counters: its fields, their names in reports, their meanings.
///
/// The struct can be added to another and taken away from a later one, field by field, and lists
/// what has a name. A field without a name is counted all the same. Fields are of types that are
/// [`Count`], those with a name [`Named`] too. The struct is both itself, so that it can be a field of
/// another one: `misses` in a field named `tlb` is then `tlb_misses`.
///
/// ```
/// strata_counters::counters! {
///     /// What a kernel did.
///     #[derive(Clone, Copy, Debug, PartialEq, Eq)]
///     pub struct Work {
///         /// Page faults.
///         faults: u64, "faults";
///         /// Pages zeroed.
///         zeroed: u64;
///     }
/// }
/// let mut work = Work { faults: 2, zeroed: 1 };
/// work += &Work { faults: 3, zeroed: 0 };
/// assert_eq!(work, Work { faults: 5, zeroed: 1 });
/// let named = work.named();
/// assert_eq!(named.len(), 1);
/// assert_eq!((&*named[0].name, named[0].about, named[0].value), ("faults", "Page faults.", 5));
/// ```
#[macro_export]
macro_rules! counters {
    (
        $(#[$meta:meta])*
        $vis:vis struct $struct:ident {
            $($(#[doc = $doc:literal])+ $field:ident: $type:ty $(, $name:literal)?;)*
        }
    ) => {
        $(#[$meta])*
        $vis struct $struct {
            $($(#[doc = $doc])+ pub $field: $type,)*
        }

        impl $struct {
            /// What has a name in reports, in the order of the fields.
            #[allow(dead_code, reason = "a struct that is a field of another is listed by that one")]
            $vis fn named(&self) -> ::std::vec::Vec<$crate::Counter> {
                let mut named = ::std::vec::Vec::new();
                $(
                    let _about = concat!($($doc),+).trim_ascii();
                    $($crate::Named::each(&self.$field, $name, &mut |name, value| {
                        named.push($crate::Counter { name, about: _about, value });
                    });)?
                )*
                named
            }
        }

        impl $crate::Count for $struct {
            const ZERO: Self = Self { $($field: $crate::Count::ZERO,)* };

            fn add(&mut self, other: &Self) {
                $($crate::Count::add(&mut self.$field, &other.$field);)*
            }

            fn subtract(&mut self, earlier: &Self) {
                $($crate::Count::subtract(&mut self.$field, &earlier.$field);)*
            }

            fn visit(&self, visit: &mut dyn FnMut(u64)) {
                $($crate::Count::visit(&self.$field, visit);)*
            }

            fn set(&mut self, next: &mut dyn FnMut() -> u64) {
                $($crate::Count::set(&mut self.$field, next);)*
            }
        }

        impl $crate::Named for $struct {
            fn each(&self, name: &str, visit: &mut dyn FnMut(String, u64)) {
                $($($crate::Named::each(&self.$field, &format!("{name}_{}", $name), visit);)?)*
            }
        }

        impl ::std::default::Default for $struct {
            fn default() -> Self {
                <Self as $crate::Count>::ZERO
            }
        }

        impl ::std::ops::AddAssign<&$struct> for $struct {
            fn add_assign(&mut self, other: &$struct) {
                $crate::Count::add(self, other);
            }
        }

        impl ::std::ops::SubAssign<&$struct> for $struct {
            fn sub_assign(&mut self, earlier: &$struct) {
                $crate::Count::subtract(self, earlier);
            }
        }
    };
}

#[cfg(test)]
mod tests {
    crate::counters! {
        /// Of one cache.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        struct Lookups {
            /// Found.
            hits: u64, "hits";
            /// Not found.
            misses: u64, "misses";
        }
    }

    crate::counters! {
        /// For the tests.
        #[derive(Clone, Debug, PartialEq, Eq)]
        struct Sample {
            /// One
            /// thing.
            one: u64, "sample.one";
            /// Without a name.
            plain: [u64; 2];
            /// Lookups.
            cache: Lookups, "sample.cache";
        }
    }

    fn sample() -> Sample {
        Sample { one: 1, plain: [2, 3], cache: Lookups { hits: 4, misses: 5 } }
    }

    #[test]
    fn every_field_is_added_and_taken_away() {
        let mut sum = sample();
        sum += &sample();
        assert_eq!(sum, Sample { one: 2, plain: [4, 6], cache: Lookups { hits: 8, misses: 10 } });
        sum -= &sample();
        assert_eq!(sum, sample());
        sum -= &sample();
        assert_eq!(sum, Sample::default());
    }

    #[test]
    fn what_has_a_name_is_listed_with_its_meaning() {
        let named = sample().named();
        let rows: Vec<_> = named.iter().map(|c| (&*c.name, c.about, c.value)).collect();
        assert_eq!(
            rows,
            [
                ("sample.one", "One thing.", 1),
                ("sample.cache_hits", "Lookups.", 4),
                ("sample.cache_misses", "Lookups.", 5),
            ]
        );
    }
}
