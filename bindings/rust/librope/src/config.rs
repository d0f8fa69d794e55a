mod getters;

use std::ptr;

use librope_sys::{self as sys, Init as _};

use crate::enums::{Angle, DType, Digest, Pairing, Rounding};
use crate::error::{Result, check, invalid, named, narrow, require_library};
use crate::scaling::Scaling;

/// Where the tensors live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Device {
    /// Main memory.
    #[default]
    Cpu,
    /// The CUDA device of this number. See the [`cuda`](crate::cuda) module.
    Cuda(usize),
}

/// What belongs to the model: the frequencies, which channels form a pair, the rounding.
///
/// Three facts have no default: the head's channels, theta and the pairing. Everything else has, and
/// `with_` methods change it.
///
/// ```
/// use librope::{Config, Pairing, Scaling};
///
/// let rope = Config::new(128, 500_000.0, Pairing::Halves)
///     .with_scaling(Scaling::Llama3 {
///         factor: 8.0,
///         low_freq_factor: 1.0,
///         high_freq_factor: 4.0,
///         original_max_position_embeddings: 8192,
///     })
///     .build()?;
/// assert_eq!(rope.inv_freq(0)?.len(), 64);
/// # Ok::<(), librope::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Config {
    /// Its pointers are NULL: `with_raw` sets them for the duration of a call.
    raw: sys::rope_config,
    short_factor: Vec<f64>,
    long_factor: Vec<f64>,
    freq_factors: Vec<f64>,
    inv_freq: Vec<f64>,
    frequency: Vec<f64>,
    /// The axes that `frequency` was given for.
    frequency_axes: usize,
    pair_axis: Vec<u8>,
    /// How many mrope sections were given: the C struct has room for four.
    sections: usize,
    /// Whether `inv_freq` was given, also if it is empty.
    own_inv_freq: bool,
    /// Sizes that the C struct cannot hold, by its field: an error of every call.
    beyond: Vec<(&'static str, usize)>,
}

// SAFETY: the pointers in `raw` are NULL outside of calls; all else is owned.
unsafe impl Send for Config {}
// SAFETY: as above, and nothing changes behind a shared reference.
unsafe impl Sync for Config {}

/// Rows of pairs in a table of frequencies.
fn frequency_rows(raw: &sys::rope_config) -> usize {
    let [axes, heads] = [raw.axes, raw.freq_heads].map(|n| usize::try_from(n).unwrap_or(0).max(1));
    axes.saturating_mul(heads)
}

/// The fields of the C struct that hold the pairs of each axis.
const SECTIONS: [&str; 4] =
    ["mrope_section[0]", "mrope_section[1]", "mrope_section[2]", "mrope_section[3]"];

impl Config {
    /// The three facts about every model: channels of a head, `rope_theta`, and the pairing.
    pub fn new(head_dim: usize, theta: f64, pairing: Pairing) -> Config {
        let mut config = Config::empty();
        config.raw.head_dim = config.int("head_dim", head_dim);
        config.raw.theta = theta;
        config.raw.pairing = pairing as i32;
        config
    }

    /// Frequencies of one's own, one per pair, in place of theta and a scaling.
    pub fn from_inv_freq(
        head_dim: usize,
        pairing: Pairing,
        inv_freq: impl Into<Vec<f64>>,
    ) -> Config {
        let mut config = Config::new(head_dim, 0.0, pairing);
        config.inv_freq = inv_freq.into();
        config.own_inv_freq = true;
        config
    }

    /// The general angle: the sum over axes of position times frequency, with frequencies for each of
    /// `freq_heads` heads, in place of theta, a scaling and the assignment of pairs to axes. `frequency`
    /// is `[axes, freq_heads, pairs]`, and no later builder changes the axes. The heads of q and k must be a
    /// multiple of `freq_heads`.
    pub fn from_frequency(
        head_dim: usize,
        pairing: Pairing,
        axes: usize,
        freq_heads: usize,
        frequency: impl Into<Vec<f64>>,
    ) -> Config {
        let mut config = Config::new(head_dim, 0.0, pairing);
        config.raw.axes = config.int("axes", axes);
        config.raw.freq_heads = config.int("freq_heads", freq_heads);
        config.frequency = frequency.into();
        config.frequency_axes = config.axes();
        config
    }

    /// A layer without RoPE: in place, values stay; out of place, they are copied.
    pub fn nope(head_dim: usize) -> Config {
        let mut config = Config::empty();
        config.raw.head_dim = config.int("head_dim", head_dim);
        config.raw.scaling = sys::ROPE_SCALING_NOPE;
        config
    }

    fn empty() -> Config {
        Config {
            raw: sys::rope_config::init(),
            short_factor: Vec::new(),
            long_factor: Vec::new(),
            freq_factors: Vec::new(),
            inv_freq: Vec::new(),
            frequency: Vec::new(),
            frequency_axes: 0,
            pair_axis: Vec::new(),
            sections: 0,
            own_inv_freq: false,
            beyond: Vec::new(),
        }
    }

    /// The value for a field of the C struct, which may have had another before.
    fn int(&mut self, field: &'static str, value: usize) -> i32 {
        self.beyond.retain(|&(name, _)| name != field);
        i32::try_from(value).unwrap_or_else(|_| {
            self.beyond.push((field, value));
            i32::MAX
        })
    }

    /// What was given for a field of the C struct.
    fn given(&self, field: &'static str, value: i32) -> usize {
        let beyond = self.beyond.iter().find(|&&(name, _)| name == field);
        beyond.map_or_else(|| value.try_into().unwrap_or(0), |&(_, value)| value)
    }

    /// Copies what `fill` writes, tables included.
    pub(crate) fn read(fill: impl FnOnce(&mut sys::rope_config) -> i32) -> Result<Config> {
        /// A table of `length` entries, or none.
        ///
        /// # Safety
        /// `table` is NULL or points to `length` entries.
        unsafe fn copy<T: Clone>(table: *const T, length: usize) -> Vec<T> {
            if table.is_null() {
                return Vec::new();
            }
            // SAFETY: the caller's promise.
            unsafe { std::slice::from_raw_parts(table, length) }.to_vec()
        }

        let mut config = Config::empty();
        let raw = &mut config.raw;
        check(fill(raw))?;
        getters::require_names(raw)?;
        let n = usize::try_from(raw.table_length).unwrap_or(0);
        // SAFETY: the library fills tables of table_length entries, which live during this call.
        unsafe {
            config.short_factor = copy(raw.short_factor, n);
            config.long_factor = copy(raw.long_factor, n);
            config.freq_factors = copy(raw.freq_factors, n);
            config.inv_freq = copy(raw.inv_freq, n);
            config.frequency = copy(raw.frequency, n * frequency_rows(raw));
            config.pair_axis = copy(raw.pair_axis, n);
        }
        raw.short_factor = ptr::null();
        raw.long_factor = ptr::null();
        raw.freq_factors = ptr::null();
        raw.inv_freq = ptr::null();
        raw.frequency = ptr::null();
        raw.pair_axis = ptr::null();
        raw.table_length = 0;
        config.frequency_axes = config.axes();
        Ok(config)
    }

    /// Sets the channels of a head.
    pub fn with_head_dim(mut self, head_dim: usize) -> Config {
        self.raw.head_dim = self.int("head_dim", head_dim);
        self
    }

    /// Sets which channels form a pair.
    pub fn with_pairing(mut self, pairing: Pairing) -> Config {
        self.raw.pairing = pairing as i32;
        self
    }

    /// Sets `rope_theta`.
    pub fn with_theta(mut self, theta: f64) -> Config {
        self.raw.theta = theta;
        self
    }

    /// How many channels turn; the others pass through. Default: all.
    pub fn with_rotary_dim(mut self, rotary_dim: usize) -> Config {
        self.raw.rotary_dim = self.int("rotary_dim", rotary_dim);
        self
    }

    /// The first channel that turns; `head_dim - rotary_dim` for DeepSeek's trailing span.
    pub fn with_rotary_offset(mut self, rotary_offset: usize) -> Config {
        self.raw.rotary_offset = self.int("rotary_offset", rotary_offset);
        self
    }

    /// Sets the precision of the angle.
    pub fn with_angle(mut self, angle: Angle) -> Config {
        self.raw.angle = angle as i32;
        self
    }

    /// Sets where values are rounded.
    pub fn with_rounding(mut self, rounding: Rounding) -> Config {
        self.raw.rounding = rounding as i32;
        self
    }

    /// Rounds the frequencies through a type: F16 or BF16 (ESM), or F32, which changes those of
    /// [`Angle::Exact`].
    pub fn with_inv_freq_dtype(mut self, dtype: DType) -> Config {
        self.raw.inv_freq_dtype = dtype as i32;
        self
    }

    /// Sets how the frequencies follow from theta, with all its numbers.
    pub fn with_scaling(mut self, scaling: Scaling) -> Config {
        (self.short_factor, self.long_factor) = scaling.write(&mut self.raw);
        self
    }

    /// Multiplies cos and sin, so attention scores by its square. Default: what the scaling says.
    pub fn with_attention_factor(mut self, attention_factor: f64) -> Config {
        self.raw.attention_factor = attention_factor;
        self
    }

    /// How many tokens the sequence has when attention runs: for [`Scaling::Dynamic`],
    /// [`Scaling::DynamicSteps`] and [`Scaling::LongRope`] that came from a `config.json`; without effect
    /// on the others. With chunked prefill these are the tokens of the whole prompt.
    pub fn with_seq_len(mut self, seq_len: i64) -> Config {
        self.raw.seq_len = seq_len;
        self
    }

    /// Several ids per token: `sections[a]` pairs for axis `a` (`mrope_section`), at most 4 axes.
    /// With `interleaved` their pairs alternate (Qwen3-VL) instead of forming blocks (Qwen2-VL).
    /// Replaces what [`with_pair_axis`](Config::with_pair_axis) set.
    pub fn with_mrope(mut self, sections: &[usize], interleaved: bool) -> Config {
        self.pair_axis = Vec::new();
        self.raw.axes = self.int("axes", sections.len());
        self.raw.mrope_interleaved = interleaved.into();
        self.sections = sections.len();
        for (i, field) in SECTIONS.into_iter().enumerate() {
            self.raw.mrope_section[i] = self.int(field, sections.get(i).copied().unwrap_or(0));
        }
        self
    }

    /// Several ids per token, up to 8, the axis of every pair given one by one. Replaces what
    /// [`with_mrope`](Config::with_mrope) set.
    pub fn with_pair_axis(mut self, axes: usize, pair_axis: impl Into<Vec<u8>>) -> Config {
        self = self.with_mrope(&[], false);
        self.raw.axes = self.int("axes", axes);
        self.pair_axis = pair_axis.into();
        self
    }

    /// Whether the ids of a token differ from axis to axis, as rows and columns of images do: positions
    /// with one id for all axes are then errors. Towers and diffusion models of
    /// [`Model::config`](crate::Model::config) have it.
    pub fn with_ids_per_axis(mut self, ids_per_axis: bool) -> Config {
        self.raw.ids_per_axis = ids_per_axis.into();
        self
    }

    /// Divides the frequencies, one factor per pair: `rope_freqs.weight` of GGUF files. Empty: by
    /// nothing.
    pub fn with_freq_factors(mut self, freq_factors: impl Into<Vec<f64>>) -> Config {
        self.freq_factors = freq_factors.into();
        self
    }

    /// Sets where the tensors live.
    pub fn with_device(mut self, device: Device) -> Config {
        let (kind, index) = match device {
            Device::Cpu => (sys::ROPE_DEVICE_CPU, 0),
            Device::Cuda(index) => (sys::ROPE_DEVICE_CUDA, index),
        };
        self.raw.device = kind;
        self.raw.device_index = self.int("device_index", index);
        self
    }

    /// The C struct, for the fields that have no method here. Its tables are NULL.
    #[must_use]
    pub fn as_raw(&self) -> &sys::rope_config {
        &self.raw
    }

    /// The smallest length above `seq_len` whose frequencies differ from those of `seq_len`; `None`
    /// if there is none. A context made for `seq_len` is right up to one token less.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if `seq_len` is not positive, or the
    /// configuration breaks a rule.
    pub fn next_change(&self, seq_len: i64) -> Result<Option<i64>> {
        named("Config::next_change", || {
            require_library()?;
            self.with_raw(|raw| {
                let mut next = 0;
                // SAFETY: `raw` is complete, `next` is writable.
                check(unsafe { sys::rope_config_next_change(raw, seq_len, &raw mut next) })?;
                Ok(Some(next).filter(|&next| next != i64::MAX))
            })
        })
    }

    /// A text that is equal for configurations that rotate alike, however they say it, and another as
    /// soon as one bit of a frequency, a factor or a channel is. The length of the sequence and the
    /// device are not looked at.
    ///
    /// ```
    /// use librope::{Config, Digest, Pairing};
    ///
    /// let halves = Config::new(128, 10000.0, Pairing::Halves);
    /// let neighbours = Config::new(128, 10000.0, Pairing::Interleaved);
    /// assert_ne!(halves.digest(Digest::Rotation)?, neighbours.digest(Digest::Rotation)?);
    /// assert_eq!(halves.digest(Digest::Angles)?, neighbours.digest(Digest::Angles)?);
    /// # Ok::<(), librope::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`build`](Config::build), but for the errors of devices.
    pub fn digest(&self, same: Digest) -> Result<String> {
        named("Config::digest", || {
            require_library()?;
            self.with_raw(|raw| {
                let mut digest = sys::rope_digest_text { text: [0; 80] };
                // SAFETY: `raw` is complete, `digest` is writable.
                check(unsafe { sys::rope_config_digest(raw, same as i32, &raw mut digest) })?;
                Ok(text_of(&digest))
            })
        })
    }

    /// Whether tensors are in main memory, where slices are.
    pub(crate) fn takes_slices(&self) -> bool {
        self.device() == Device::Cpu
    }

    /// Calls `f` with the C struct and the tables in it.
    pub(crate) fn with_raw<T>(&self, f: impl FnOnce(&sys::rope_config) -> Result<T>) -> Result<T> {
        fn pointer<T>(table: &[T]) -> *const T {
            if table.is_empty() { ptr::null() } else { table.as_ptr() }
        }

        let lengths = [
            self.short_factor.len(),
            self.long_factor.len(),
            self.freq_factors.len(),
            self.inv_freq.len(),
            self.pair_axis.len(),
        ];
        if !self.frequency.is_empty() && self.axes() != self.frequency_axes {
            return invalid(format_args!(
                "axes ({}) must be those of the table of frequencies, which has {}",
                self.axes(),
                self.frequency_axes
            ));
        }
        let rows = frequency_rows(&self.raw);
        let length = lengths.into_iter().max().unwrap_or(0).max(self.frequency.len() / rows);
        if !self.frequency.is_empty() && length.checked_mul(rows) != Some(self.frequency.len()) {
            return invalid(format_args!(
                "frequency ({} entries) must have one for each of {rows} axes times heads, and of \
                 the pairs",
                self.frequency.len()
            ));
        }
        if lengths.into_iter().any(|l| l != 0 && l != length) {
            return invalid(format_args!(
                "the tables short_factor, long_factor, freq_factors, inv_freq and pair_axis \
                 ({lengths:?} entries) must have one entry per pair"
            ));
        }
        if self.sections > self.raw.mrope_section.len() {
            return invalid(format_args!(
                "{} sections were given to with_mrope, which takes up to 4: use with_pair_axis",
                self.sections
            ));
        }
        if let Some(&(field, value)) = self.beyond.first() {
            narrow(field, value)?;
        }
        if self.own_inv_freq && self.inv_freq.is_empty() {
            return invalid(format_args!(
                "inv_freq (0 entries) must have one frequency per pair of the {} channels",
                self.rotary_dim()
            ));
        }
        f(&sys::rope_config {
            table_length: narrow("the length of the tables", length)?,
            short_factor: pointer(&self.short_factor),
            long_factor: pointer(&self.long_factor),
            freq_factors: pointer(&self.freq_factors),
            inv_freq: pointer(&self.inv_freq),
            frequency: pointer(&self.frequency),
            pair_axis: pointer(&self.pair_axis),
            ..self.raw
        })
    }
}

/// The text of a digest, which ends with a zero.
pub(crate) fn text_of(digest: &sys::rope_digest_text) -> String {
    digest.text.iter().map(|c| char::from(c.to_ne_bytes()[0])).take_while(|&c| c != '\0').collect()
}
