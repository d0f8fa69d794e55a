//! What a [`Config`] says, also one that was read from a `config.json`.

use librope_sys as sys;

use super::{Config, Device, SECTIONS};
use crate::enums::{Angle, DType, Numbered, Pairing, Rounding};
use crate::error::{Error, Result};
use crate::scaling::Scaling;

/// A number that [`require_names`] has let through.
fn named<T: Numbered>(number: i32) -> T {
    T::of(number).unwrap_or_else(|| unreachable!("{number} has no name"))
}

/// Refuses a configuration from the library with a choice that this crate has no name for.
pub(super) fn require_names(raw: &sys::rope_config) -> Result<()> {
    let dtype = raw.inv_freq_dtype;
    let choices = [
        ("pairing", raw.pairing, raw.pairing == 0 || Pairing::of(raw.pairing).is_some()),
        ("angle", raw.angle, Angle::of(raw.angle).is_some()),
        ("rounding", raw.rounding, Rounding::of(raw.rounding).is_some()),
        ("inv_freq_dtype", dtype, dtype == 0 || DType::of(dtype).is_some()),
        ("scaling", raw.scaling, Scaling::read(raw, &[], &[]).is_some()),
        ("device", raw.device, device_of(raw.device, 0).is_some()),
    ];
    match choices.into_iter().find(|&(_, _, known)| !known) {
        Some((field, number, _)) => Err(Error::Unsupported(format!(
            "librope: the library's configuration has {field} {number}, which this crate does not \
             know"
        ))),
        None => Ok(()),
    }
}

/// The device of this number; `None` if it has no name here.
fn device_of(number: i32, index: usize) -> Option<Device> {
    match number {
        0 | sys::ROPE_DEVICE_CPU => Some(Device::Cpu),
        sys::ROPE_DEVICE_CUDA => Some(Device::Cuda(index)),
        _ => None,
    }
}

impl Config {
    /// Channels of a head, 0 if not known.
    #[must_use]
    pub fn head_dim(&self) -> usize {
        self.given("head_dim", self.raw.head_dim)
    }

    /// `rope_theta`, 0 if there is none.
    #[must_use]
    pub fn theta(&self) -> f64 {
        self.raw.theta
    }

    /// Which channels form a pair; `None` if not known, or if nothing turns.
    #[must_use]
    pub fn pairing(&self) -> Option<Pairing> {
        Pairing::of(self.raw.pairing)
    }

    /// How many channels turn.
    #[must_use]
    pub fn rotary_dim(&self) -> usize {
        let dim = self.given("rotary_dim", self.raw.rotary_dim);
        if dim == 0 { self.head_dim() } else { dim }
    }

    /// The first channel that turns.
    #[must_use]
    pub fn rotary_offset(&self) -> usize {
        self.given("rotary_offset", self.raw.rotary_offset)
    }

    /// The precision of the angle.
    #[must_use]
    pub fn angle(&self) -> Angle {
        named(self.raw.angle)
    }

    /// Where values are rounded.
    #[must_use]
    pub fn rounding(&self) -> Rounding {
        named(self.raw.rounding)
    }

    /// The type that frequencies are rounded through, if any.
    #[must_use]
    pub fn inv_freq_dtype(&self) -> Option<DType> {
        DType::of(self.raw.inv_freq_dtype)
    }

    /// How the frequencies follow from theta, with all its numbers.
    pub fn scaling(&self) -> Scaling {
        Scaling::read(&self.raw, &self.short_factor, &self.long_factor)
            .unwrap_or_else(|| unreachable!("scaling {} has no name", self.raw.scaling))
    }

    /// The factor of cos and sin that was set; 0: what the scaling says. [`Info`] has the result.
    ///
    /// [`Info`]: crate::Info::attention_factor
    #[must_use]
    pub fn attention_factor(&self) -> f64 {
        self.raw.attention_factor
    }

    /// Ids per token.
    #[must_use]
    pub fn axes(&self) -> usize {
        self.given("axes", self.raw.axes).max(1)
    }

    /// Pairs of each axis; empty if there is one axis, or [`pair_axis`](Config::pair_axis) says more.
    #[must_use]
    pub fn mrope_section(&self) -> Vec<usize> {
        let sections = self.raw.mrope_section;
        let count = if sections == [0; 4] { 0 } else { self.axes().min(4) };
        (0..count).map(|i| self.given(SECTIONS[i], sections[i])).collect()
    }

    /// Whether the pairs of the axes alternate (Qwen3-VL) instead of forming blocks (Qwen2-VL).
    #[must_use]
    pub fn mrope_interleaved(&self) -> bool {
        self.raw.mrope_interleaved != 0
    }

    /// Whether positions with one id for all axes are errors.
    #[must_use]
    pub fn ids_per_axis(&self) -> bool {
        self.raw.ids_per_axis != 0
    }

    /// The axis of every pair; empty if [`mrope_section`](Config::mrope_section) says it.
    #[must_use]
    pub fn pair_axis(&self) -> &[u8] {
        &self.pair_axis
    }

    /// What divides the frequencies, one factor per pair; empty: nothing.
    #[must_use]
    pub fn freq_factors(&self) -> &[f64] {
        &self.freq_factors
    }

    /// The frequencies that replace theta and scaling, one per pair; empty if none do. A
    /// [`Context`](crate::Context::inv_freq) has the frequencies of every configuration.
    #[must_use]
    pub fn inv_freq(&self) -> &[f64] {
        &self.inv_freq
    }

    /// Where the tensors live.
    #[must_use]
    pub fn device(&self) -> Device {
        let index = self.given("device_index", self.raw.device_index);
        device_of(self.raw.device, index)
            .unwrap_or_else(|| unreachable!("device {} has no name", self.raw.device))
    }

    /// Whether this is a layer without RoPE.
    #[must_use]
    pub fn is_nope(&self) -> bool {
        self.raw.scaling == sys::ROPE_SCALING_NOPE
    }

    /// Whether the frequencies depend on the length of the sequence: then
    /// [`with_seq_len`](Config::with_seq_len) is required.
    #[must_use]
    pub fn needs_seq_len(&self) -> bool {
        matches!(
            self.raw.scaling,
            sys::ROPE_SCALING_DYNAMIC
                | sys::ROPE_SCALING_DYNAMIC_STEPS
                | sys::ROPE_SCALING_LONGROPE
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A configuration as a library that is newer than this crate might give it.
    fn from_library(change: impl FnOnce(&mut sys::rope_config)) -> Result<Config> {
        Config::read(|raw| {
            *raw = *Config::new(64, 1e4, Pairing::Halves).as_raw();
            change(raw);
            sys::ROPE_OK
        })
    }

    #[test]
    fn choices_without_a_name_are_refused_by_their_field() {
        for (config, words) in [
            (from_library(|raw| raw.pairing = 99), "pairing 99"),
            (from_library(|raw| raw.angle = 99), "angle 99"),
            (from_library(|raw| raw.rounding = 99), "rounding 99"),
            (from_library(|raw| raw.inv_freq_dtype = 99), "inv_freq_dtype 99"),
            (from_library(|raw| raw.scaling = 99), "scaling 99"),
            (from_library(|raw| raw.device = 99), "device 99"),
        ] {
            let error = config.unwrap_err();
            assert!(matches!(error, Error::Unsupported(_)), "{error}");
            assert!(error.message().contains(words), "{error}");
        }
    }

    #[test]
    fn devices_are_read_as_they_are() {
        let device = |number, index| {
            let config = from_library(|raw| (raw.device, raw.device_index) = (number, index));
            config.map(|config| config.device()).ok()
        };
        assert_eq!(device(0, 0), Some(Device::Cpu));
        assert_eq!(device(sys::ROPE_DEVICE_CPU, 0), Some(Device::Cpu));
        assert_eq!(device(sys::ROPE_DEVICE_CUDA, 3), Some(Device::Cuda(3)));
        assert_eq!(device(3, 0), None);
    }
}
