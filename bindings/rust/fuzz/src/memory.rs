//! Memory whose every element is known, with a border around the slice that a call gets.

use librope::Element;
use librope::half::{bf16, f16};

use crate::random::Random;

/// Elements by their bits: NaN is equal to itself.
pub trait Bits: Element {
    fn from_random(bits: u64) -> Self;
    /// A number from -10 to 10.
    fn from_number(random: &mut Random) -> Self;
    fn bits(self) -> u32;
}

fn number(random: &mut Random) -> f32 {
    (random.next() >> 40) as f32 / (1 << 24) as f32 * 20.0 - 10.0
}

impl Bits for f32 {
    fn from_random(bits: u64) -> f32 {
        f32::from_bits(bits as u32)
    }
    fn from_number(random: &mut Random) -> f32 {
        number(random)
    }
    fn bits(self) -> u32 {
        self.to_bits()
    }
}

impl Bits for f16 {
    fn from_random(bits: u64) -> f16 {
        f16::from_bits(bits as u16)
    }
    fn from_number(random: &mut Random) -> f16 {
        f16::from_f32(number(random))
    }
    fn bits(self) -> u32 {
        self.to_bits().into()
    }
}

impl Bits for bf16 {
    fn from_random(bits: u64) -> bf16 {
        bf16::from_bits(bits as u16)
    }
    fn from_number(random: &mut Random) -> bf16 {
        bf16::from_f32(number(random))
    }
    fn bits(self) -> u32 {
        self.to_bits().into()
    }
}

pub struct Memory<T> {
    elements: Vec<T>,
    before: Vec<u32>,
    start: usize,
    len: usize,
}

impl<T: Bits> Memory<T> {
    /// A slice of `len` elements. Half of them have no border, so that the sanitizer's is next to them.
    pub fn new(random: &mut Random, len: usize) -> Memory<T> {
        let values: Vec<T> = (0..len).map(|_| T::from_random(random.next() >> 16)).collect();
        Memory::holding(random, &values)
    }

    /// A slice of these.
    pub fn holding(random: &mut Random, values: &[T]) -> Memory<T> {
        let start = if random.one_in(2) { 0 } else { 1 + random.below(600) };
        let mut border = || (0..start).map(|_| T::from_random(random.next() >> 16)).collect();
        let (front, back): (Vec<T>, Vec<T>) = (border(), border());
        let elements = [&front, values, &back].concat();
        let before = elements.iter().map(|x| x.bits()).collect();
        Memory { elements, before, start, len: values.len() }
    }

    pub fn slice(&self) -> &[T] {
        &self.elements[self.start..][..self.len]
    }

    pub fn slice_mut(&mut self) -> &mut [T] {
        &mut self.elements[self.start..][..self.len]
    }

    /// Panics unless all that changed lies in the slice at an index that `may_change`.
    pub fn check(&self, what: &str, may_change: impl Fn(usize) -> bool) {
        for (i, (now, before)) in self.elements.iter().zip(&self.before).enumerate() {
            if now.bits() == *before {
                continue;
            }
            let inside = i >= self.start && i < self.start + self.len;
            assert!(
                inside && may_change(i - self.start),
                "{what}: element {} of a slice of {} was written",
                i as i64 - self.start as i64,
                self.len
            );
        }
    }

    pub fn check_unchanged(&self, what: &str) {
        self.check(what, |_| false);
    }
}
