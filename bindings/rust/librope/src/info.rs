//! What a configuration came to, as the library tells it.

use librope_sys as sys;

/// What a configuration came to.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Info {
    /// Channels of a head.
    pub head_dim: usize,
    /// Channels in which pairs lie; with proportional scaling the whole head.
    pub rotary_dim: usize,
    /// The first of them.
    pub rotary_offset: usize,
    /// Half of them.
    pub pairs: usize,
    /// Ids per token.
    pub axes: usize,
    /// Frequency sets.
    pub freq_sets: usize,
    /// Heads with frequencies of their own; 0: all heads share them.
    pub freq_heads: usize,
    /// Already in cos and sin.
    pub attention_factor: f64,
    /// For the caller to multiply into the softmax scale: 1 except YaRN with `mscale_all_dim`
    /// (DeepSeek).
    pub softmax_factor: f64,
    /// The frequencies are right for sequences of this many tokens and more: 0, any length, unless
    /// the scaling depends on it. It may be less than the `seq_len` of the configuration.
    pub valid_from: i64,
    /// The frequencies are right for sequences shorter than this: `i64::MAX`, any length, unless
    /// the scaling depends on it.
    pub valid_below: i64,
}

impl Info {
    pub(crate) fn of(info: &sys::rope_info) -> Info {
        fn size(value: i32) -> usize {
            value.try_into().unwrap_or(0)
        }

        Info {
            head_dim: size(info.head_dim),
            rotary_dim: size(info.rotary_dim),
            rotary_offset: size(info.rotary_offset),
            pairs: size(info.pairs),
            axes: size(info.axes),
            freq_sets: size(info.freq_sets),
            freq_heads: size(info.freq_heads),
            attention_factor: info.attention_factor,
            softmax_factor: info.softmax_factor,
            valid_from: info.valid_from,
            valid_below: info.valid_below,
        }
    }
}
