use librope_sys as sys;

/// How the frequencies follow from theta: `rope_type` in `config.json`, with what it uses.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
#[must_use]
pub enum Scaling {
    /// `theta^(-2i / D)`
    #[default]
    Default,
    /// All frequencies divided by `factor`.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// NTK: theta grows with the length of the sequence.
    Dynamic {
        /// The growth.
        factor: f64,
        /// The length from which theta grows.
        max_position_embeddings: i64,
        /// How many tokens the sequence has when attention runs.
        seq_len: i64,
    },
    /// [`Dynamic`](Scaling::Dynamic) for the next of `max_position_embeddings` times 1, 2, 4, ..
    /// tokens: Qwen 1.
    DynamicSteps {
        /// The growth.
        factor: f64,
        /// The length from which theta grows.
        max_position_embeddings: i64,
        /// How many tokens the sequence has when attention runs.
        seq_len: i64,
    },
    /// YaRN.
    Yarn(Yarn),
    /// LongRoPE: one list of factors for short sequences, one for long ones.
    LongRope(LongRope),
    /// Llama 3.1 and later.
    Llama3 {
        /// The divisor of low frequencies.
        factor: f64,
        /// Wavelengths above `original_max_position_embeddings / low_freq_factor` are divided.
        low_freq_factor: f64,
        /// Wavelengths below `original_max_position_embeddings / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// The length of the training before the extension.
        original_max_position_embeddings: i64,
    },
    /// Gemma 4: the first `rotary_dim` channels turn, but frequencies are those of the whole head.
    Proportional {
        /// The divisor; 0 is 1.
        factor: f64,
    },
    /// A layer without RoPE: values stay.
    Nope,
}

/// The numbers of [`Scaling::Yarn`]. Zero is the method's own default.
///
/// ```
/// use librope::{Config, Pairing, Scaling, Yarn};
///
/// let deepseek = Yarn::new(40.0, 4096).with_mscale(1.0, 1.0);
/// let config = Config::new(64, 10000.0, Pairing::Interleaved).with_scaling(Scaling::Yarn(deepseek));
/// assert!(config.build()?.info(0)?.softmax_factor > 1.8);
/// # Ok::<(), librope::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
#[must_use]
pub struct Yarn {
    /// Required: the extension.
    pub factor: f64,
    /// Required: the length of the training before the extension.
    pub original_max_position_embeddings: i64,
    /// 0: 32
    pub beta_fast: f64,
    /// 0: 1
    pub beta_slow: f64,
    /// DeepSeek's numerator of the attention factor.
    pub mscale: f64,
    /// DeepSeek's denominator of the attention factor; sets [`Info::softmax_factor`].
    ///
    /// [`Info::softmax_factor`]: crate::Info::softmax_factor
    pub mscale_all_dim: f64,
    /// `"truncate": false`: gpt-oss.
    pub no_truncate: bool,
}

impl Yarn {
    /// The two required numbers.
    pub fn new(factor: f64, original_max_position_embeddings: i64) -> Yarn {
        Yarn { factor, original_max_position_embeddings, ..Yarn::default() }
    }

    /// Sets `beta_fast` and `beta_slow`.
    pub fn with_beta(mut self, fast: f64, slow: f64) -> Yarn {
        (self.beta_fast, self.beta_slow) = (fast, slow);
        self
    }

    /// Sets `mscale` and `mscale_all_dim`.
    pub fn with_mscale(mut self, mscale: f64, mscale_all_dim: f64) -> Yarn {
        (self.mscale, self.mscale_all_dim) = (mscale, mscale_all_dim);
        self
    }

    /// Sets `"truncate": false`.
    pub fn with_no_truncate(mut self) -> Yarn {
        self.no_truncate = true;
        self
    }
}

/// The numbers of [`Scaling::LongRope`].
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
#[must_use]
pub struct LongRope {
    /// One factor per pair, for sequences up to `original_max_position_embeddings`.
    pub short_factor: Vec<f64>,
    /// One factor per pair, for longer ones.
    pub long_factor: Vec<f64>,
    /// The length of the training before the extension.
    pub original_max_position_embeddings: i64,
    /// With `factor` 0, its numerator.
    pub max_position_embeddings: i64,
    /// 0: `max_position_embeddings / original_max_position_embeddings`
    pub factor: f64,
    /// How many tokens the sequence has when attention runs.
    pub seq_len: i64,
}

impl LongRope {
    /// The two tables and the length where the one ends and the other begins.
    pub fn new(
        short_factor: impl Into<Vec<f64>>,
        long_factor: impl Into<Vec<f64>>,
        original_max_position_embeddings: i64,
    ) -> LongRope {
        LongRope {
            short_factor: short_factor.into(),
            long_factor: long_factor.into(),
            original_max_position_embeddings,
            ..LongRope::default()
        }
    }

    /// Sets `max_position_embeddings`.
    pub fn with_max_position_embeddings(mut self, max_position_embeddings: i64) -> LongRope {
        self.max_position_embeddings = max_position_embeddings;
        self
    }

    /// Sets `factor`.
    pub fn with_factor(mut self, factor: f64) -> LongRope {
        self.factor = factor;
        self
    }

    /// Sets `seq_len`.
    pub fn with_seq_len(mut self, seq_len: i64) -> LongRope {
        self.seq_len = seq_len;
        self
    }
}

impl Scaling {
    /// Replaces the scaling of the C struct and all numbers of scalings. Returns the tables of short
    /// and long factors, which the struct cannot own.
    pub(crate) fn write(self, r: &mut sys::rope_config) -> (Vec<f64>, Vec<f64>) {
        r.factor = 0.0;
        r.max_position_embeddings = 0;
        r.original_max_position_embeddings = 0;
        r.seq_len = 0;
        (r.beta_fast, r.beta_slow) = (0.0, 0.0);
        (r.mscale, r.mscale_all_dim) = (0.0, 0.0);
        (r.low_freq_factor, r.high_freq_factor) = (0.0, 0.0);
        r.yarn_no_truncate = 0;
        let mut tables = (Vec::new(), Vec::new());
        r.scaling = match self {
            Scaling::Default => sys::ROPE_SCALING_DEFAULT,
            Scaling::Linear { factor } => {
                r.factor = factor;
                sys::ROPE_SCALING_LINEAR
            }
            Scaling::Dynamic { factor, max_position_embeddings, seq_len } => {
                r.factor = factor;
                r.max_position_embeddings = max_position_embeddings;
                r.seq_len = seq_len;
                sys::ROPE_SCALING_DYNAMIC
            }
            Scaling::DynamicSteps { factor, max_position_embeddings, seq_len } => {
                r.factor = factor;
                r.max_position_embeddings = max_position_embeddings;
                r.seq_len = seq_len;
                sys::ROPE_SCALING_DYNAMIC_STEPS
            }
            Scaling::Yarn(yarn) => {
                r.factor = yarn.factor;
                r.original_max_position_embeddings = yarn.original_max_position_embeddings;
                (r.beta_fast, r.beta_slow) = (yarn.beta_fast, yarn.beta_slow);
                (r.mscale, r.mscale_all_dim) = (yarn.mscale, yarn.mscale_all_dim);
                r.yarn_no_truncate = yarn.no_truncate.into();
                sys::ROPE_SCALING_YARN
            }
            Scaling::LongRope(long) => {
                r.factor = long.factor;
                r.max_position_embeddings = long.max_position_embeddings;
                r.original_max_position_embeddings = long.original_max_position_embeddings;
                r.seq_len = long.seq_len;
                tables = (long.short_factor, long.long_factor);
                sys::ROPE_SCALING_LONGROPE
            }
            Scaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_position_embeddings,
            } => {
                r.factor = factor;
                r.low_freq_factor = low_freq_factor;
                r.high_freq_factor = high_freq_factor;
                r.original_max_position_embeddings = original_max_position_embeddings;
                sys::ROPE_SCALING_LLAMA3
            }
            Scaling::Proportional { factor } => {
                r.factor = factor;
                sys::ROPE_SCALING_PROPORTIONAL
            }
            Scaling::Nope => sys::ROPE_SCALING_NOPE,
        };
        tables
    }

    /// What [`write`](Scaling::write) wrote; `None` if the number has no name here.
    pub(crate) fn read(r: &sys::rope_config, short: &[f64], long: &[f64]) -> Option<Scaling> {
        let factor = r.factor;
        let max_position_embeddings = r.max_position_embeddings;
        let original_max_position_embeddings = r.original_max_position_embeddings;
        let seq_len = r.seq_len;
        Some(match r.scaling {
            sys::ROPE_SCALING_DEFAULT => Scaling::Default,
            sys::ROPE_SCALING_LINEAR => Scaling::Linear { factor },
            sys::ROPE_SCALING_DYNAMIC => {
                Scaling::Dynamic { factor, max_position_embeddings, seq_len }
            }
            sys::ROPE_SCALING_DYNAMIC_STEPS => {
                Scaling::DynamicSteps { factor, max_position_embeddings, seq_len }
            }
            sys::ROPE_SCALING_YARN => Scaling::Yarn(Yarn {
                factor,
                original_max_position_embeddings,
                beta_fast: r.beta_fast,
                beta_slow: r.beta_slow,
                mscale: r.mscale,
                mscale_all_dim: r.mscale_all_dim,
                no_truncate: r.yarn_no_truncate != 0,
            }),
            sys::ROPE_SCALING_LONGROPE => Scaling::LongRope(LongRope {
                short_factor: short.to_vec(),
                long_factor: long.to_vec(),
                original_max_position_embeddings,
                max_position_embeddings,
                factor,
                seq_len,
            }),
            sys::ROPE_SCALING_LLAMA3 => Scaling::Llama3 {
                factor,
                low_freq_factor: r.low_freq_factor,
                high_freq_factor: r.high_freq_factor,
                original_max_position_embeddings,
            },
            sys::ROPE_SCALING_PROPORTIONAL => Scaling::Proportional { factor },
            sys::ROPE_SCALING_NOPE => Scaling::Nope,
            _ => return None,
        })
    }
}
