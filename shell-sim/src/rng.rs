//! Choices, all from one seed.

/// SplitMix64 (Steele, Lea and Flood, 2014): small, and the same on every machine and in every version.
#[derive(Debug, Clone)]
pub(crate) struct Rng(u64);

impl Rng {
    /// A generator for one concern: drawing more there shifts nothing elsewhere.
    pub(crate) fn split(seed: u64, concern: u64) -> Self {
        let mut rng = Self(seed ^ concern.wrapping_mul(0xd134_2543_de82_ef95));
        rng.next();
        Self(rng.next())
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let a = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let b = (a ^ (a >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        b ^ (b >> 31)
    }

    /// From `low` to `high`, both included.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        let len = u64::try_from(from.len()).expect("a length fits in 64 bits");
        let at = usize::try_from(self.next() % len).expect("a place in a slice");
        *from.get(at).expect("the remainder is below the length")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_gives_the_published_numbers() {
        // The first outputs for the seed 1234567, as the reference implementation prints them.
        let mut rng = Rng(1_234_567);
        let drawn: Vec<u64> = (0..3).map(|_| rng.next()).collect();
        assert_eq!(drawn, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn concerns_do_not_share_their_numbers() {
        let draw = |concern| (0..50).map(|_| Rng::split(7, concern).next()).collect::<Vec<_>>();
        assert_ne!(draw(1), draw(2));
        let mut rng = Rng::split(7, 3);
        assert!((0..1000).all(|_| (3..=5).contains(&rng.between(3, 5))));
    }
}
