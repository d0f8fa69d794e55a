use std::ffi::{CStr, CString};
use std::fmt;
use std::path::Path;
use std::ptr::{self, NonNull};

use librope_sys as sys;

use crate::config::{Config, text_of};
use crate::context::Context;
use crate::enums::Digest;
use crate::error::{Result, check, invalid, made, named, narrow, require_library};

/// A model's `config.json` or GGUF file: its kinds of RoPE, and which layer is of which kind.
///
/// ```
/// use librope::Model;
///
/// let model = Model::from_json(
///     r#"{"model_type": "gemma3_text", "hidden_size": 2560, "num_attention_heads": 8,
///         "head_dim": 256, "max_position_embeddings": 131072, "rope_theta": 1000000,
///         "rope_local_base_freq": 10000, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
///         "num_hidden_layers": 12}"#,
/// )?;
/// let ropes = model.contexts(1)?; // one per kind
/// for layer in 0..12 {
///     let rope = &ropes[model.layer_type(layer)?];
///     assert_eq!(rope.head_dim(), 256);
/// }
/// assert_ne!(model.layer_type(4)?, model.layer_type(5)?); // every sixth layer sees everything
/// # Ok::<(), librope::Error>(())
/// ```
pub struct Model(NonNull<sys::rope_model>);

// SAFETY: a const rope_model may be used by any number of threads at once; it has no owner thread.
unsafe impl Send for Model {}
// SAFETY: as above; nothing here takes it non-const but Drop.
unsafe impl Sync for Model {}

/// The value of a key of a GGUF file that the program has parsed: a number of any width is one of 64
/// bits here.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum GgufValue<'a> {
    /// `true` or `false`.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A number with a point.
    Float(f64),
    /// A text.
    Text(&'a str),
    /// An array of flags, one byte each: 0 or 1.
    Bools(&'a [u8]),
    /// An array of integers.
    Ints(&'a [i64]),
    /// An array of numbers with a point.
    Floats(&'a [f64]),
    /// An array of so many texts, as a vocabulary has them, which are not looked at.
    Texts(usize),
}

impl GgufValue<'_> {
    /// `key` ends with 0. The result points into `self`.
    fn given(&self, key: &CStr) -> sys::rope_gguf_value {
        const BOOL: u32 = 7;
        const STRING: u32 = 8;
        const ARRAY: u32 = 9;
        const INT64: u32 = 11;
        const FLOAT64: u32 = 12;
        let (kind, element, count, data): (u32, u32, usize, *const std::ffi::c_void) = match self {
            GgufValue::Bool(flag) => (BOOL, 0, 1, ptr::from_ref(flag).cast()),
            GgufValue::Int(number) => (INT64, 0, 1, ptr::from_ref(number).cast()),
            GgufValue::Float(number) => (FLOAT64, 0, 1, ptr::from_ref(number).cast()),
            GgufValue::Text(text) => (STRING, 0, text.len(), text.as_ptr().cast()),
            GgufValue::Bools(list) => (ARRAY, BOOL, list.len(), list.as_ptr().cast()),
            GgufValue::Ints(list) => (ARRAY, INT64, list.len(), list.as_ptr().cast()),
            GgufValue::Floats(list) => (ARRAY, FLOAT64, list.len(), list.as_ptr().cast()),
            GgufValue::Texts(count) => (ARRAY, STRING, *count, ptr::null()),
        };
        sys::rope_gguf_value { key: key.as_ptr(), type_: kind, element, count: count as u64, data }
    }
}

impl Model {
    pub(crate) fn handle(&self) -> *const sys::rope_model {
        self.0.as_ptr()
    }

    /// Reads a model's `config.json`, or its `rope_parameters` (`rope_scaling`) dictionary alone,
    /// which has no layers. The text is untrusted; what it does not say clearly is
    /// [`Error::Parse`](crate::Error::Parse).
    ///
    /// # Errors
    /// [`Error::Parse`](crate::Error::Parse) for what is not JSON, or lacks a key, or has an impossible
    /// value; [`Error::Unsupported`](crate::Error::Unsupported) for a model without RoPE.
    pub fn from_json(json: impl AsRef<[u8]>) -> Result<Model> {
        named("Model::from_json", || {
            require_library()?;
            let json = json.as_ref();
            let mut model = ptr::null_mut();
            // SAFETY: `json` has `len` bytes and is not kept.
            check(unsafe {
                sys::rope_model_create(json.as_ptr().cast(), json.len(), &raw mut model)
            })?;
            Ok(Model(made(model)?))
        })
    }

    /// The same for a caller who knows of some keys that they change nothing, by name (`attn_factor`) or
    /// path (`text_config.rope_scaling.attn_factor`): the text is not refused because of them.
    ///
    /// # Errors
    /// Those of [`from_json`](Model::from_json);
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for a name that spares no key.
    pub fn from_json_accepting(json: impl AsRef<[u8]>, accepted_keys: &[&str]) -> Result<Model> {
        named("Model::from_json_accepting", || {
            require_library()?;
            let json = json.as_ref();
            let mut names = Vec::with_capacity(accepted_keys.len());
            for (i, &key) in accepted_keys.iter().enumerate() {
                match CString::new(key) {
                    Ok(name) => names.push(name),
                    Err(_) => {
                        return invalid(format_args!(
                            "accepted_keys[{i}] ({key:?}) must not have a NUL character"
                        ));
                    }
                }
            }
            let keys: Vec<_> = names.iter().map(|name| name.as_ptr()).collect();
            let count = narrow("accepted_keys.len()", keys.len())?;
            let mut model = ptr::null_mut();
            // SAFETY: `json` has `len` bytes, `keys` has `count` texts that end with 0; nothing is kept.
            check(unsafe {
                sys::rope_model_create_accepting(
                    json.as_ptr().cast(),
                    json.len(),
                    keys.as_ptr(),
                    count,
                    &raw mut model,
                )
            })?;
            Ok(Model(made(model)?))
        })
    }

    /// What the text says that programs treat differently and that is no part of a configuration
    /// (`dual_chunk_attention_config`), and how a text of another program than transformers was read.
    pub fn notes(&self) -> impl Iterator<Item = &str> {
        (0..).map_while(|index| {
            // SAFETY: the handle is alive; a note is text that lives as long as the model.
            let note = unsafe { sys::rope_model_note(self.0.as_ptr(), index) };
            if note.is_null() {
                return None;
            }
            // SAFETY: as above.
            unsafe { CStr::from_ptr(note) }.to_str().ok()
        })
    }

    /// Reads the metadata of a GGUF file from its bytes, or from those at its beginning: the weights
    /// are not needed. The bytes are untrusted; a key of RoPE that is not read is an error with its
    /// name.
    ///
    /// # Errors
    /// [`Error::Parse`](crate::Error::Parse) for what is no GGUF, ends too early, or lacks a key, or
    /// has an impossible value; [`Error::Unsupported`](crate::Error::Unsupported) for an architecture
    /// or a key that is not read.
    pub fn from_gguf(bytes: impl AsRef<[u8]>) -> Result<Model> {
        named("Model::from_gguf", || {
            require_library()?;
            let bytes = bytes.as_ref();
            let mut model = ptr::null_mut();
            // SAFETY: `bytes` has `len` bytes and is not kept.
            check(unsafe {
                sys::rope_model_create_gguf(bytes.as_ptr().cast(), bytes.len(), &raw mut model)
            })?;
            Ok(Model(made(model)?))
        })
    }

    /// [`from_gguf`](Model::from_gguf) for a file, of which it reads as much as it needs.
    ///
    /// # Errors
    /// Those of [`from_gguf`](Model::from_gguf), and
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if the file cannot be read.
    pub fn load_gguf(path: impl AsRef<Path>) -> Result<Model> {
        named("Model::load_gguf", || {
            require_library()?;
            let name = path.as_ref().as_os_str().as_encoded_bytes();
            let Ok(name) = CString::new(name) else {
                return invalid(format_args!("path must not contain a zero byte"));
            };
            let mut model = ptr::null_mut();
            // SAFETY: `name` ends with a zero byte and is not kept.
            check(unsafe { sys::rope_model_load_gguf(name.as_ptr(), &raw mut model) })?;
            Ok(Model(made(model)?))
        })
    }

    /// Reads the metadata of a GGUF file that the program has parsed already: its keys, in any order,
    /// and its tensors of frequency factors (`rope_freqs.weight`) by name.
    ///
    /// ```
    /// use librope::{GgufValue, Model};
    ///
    /// let model = Model::from_gguf_values(
    ///     &[
    ///         ("general.architecture", GgufValue::Text("llama")),
    ///         ("llama.block_count", GgufValue::Int(32)),
    ///         ("llama.attention.key_length", GgufValue::Int(128)),
    ///         ("llama.rope.freq_base", GgufValue::Float(500_000.0)),
    ///     ],
    ///     &[],
    /// )?;
    /// assert_eq!(model.config(0)?.theta(), 500_000.0);
    /// # Ok::<(), librope::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`from_gguf`](Model::from_gguf), and
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for a key that appears twice, and a flag that
    /// is neither 0 nor 1.
    pub fn from_gguf_values(
        values: &[(&str, GgufValue<'_>)],
        factors: &[(&str, &[f32])],
    ) -> Result<Model> {
        named("Model::from_gguf_values", || {
            require_library()?;
            let terminated = |what: &str, name: &str| match CString::new(name) {
                Ok(name) => Ok(name),
                Err(_) => invalid(format_args!("{what} ({name:?}) must not have a NUL character")),
            };
            for (key, value) in values {
                let GgufValue::Bools(flags) = value else { continue };
                if let Some(i) = flags.iter().position(|&flag| flag > 1) {
                    return invalid(format_args!(
                        "values ({key:?}): Bools[{i}] ({}) must be 0 or 1",
                        flags[i]
                    ));
                }
            }
            let keys: Vec<CString> =
                values.iter().map(|(key, _)| terminated("values", key)).collect::<Result<_>>()?;
            let names: Vec<CString> = factors
                .iter()
                .map(|(name, _)| terminated("factors", name))
                .collect::<Result<_>>()?;
            let given: Vec<_> =
                values.iter().zip(&keys).map(|((_, v), key)| v.given(key)).collect();
            let tensors: Vec<_> = factors
                .iter()
                .zip(&names)
                .map(|((_, numbers), name)| sys::rope_gguf_factors {
                    name: name.as_ptr(),
                    values: numbers.as_ptr(),
                    count: numbers.len() as u64,
                })
                .collect();
            let count = narrow("values.len()", given.len())?;
            let factor_count = narrow("factors.len()", tensors.len())?;
            let mut model = ptr::null_mut();
            // SAFETY: the lists have as many entries, whose names end with 0 and whose data has `count`
            // elements of their type; nothing is kept.
            check(unsafe {
                sys::rope_model_create_gguf_values(
                    given.as_ptr(),
                    count,
                    tensors.as_ptr(),
                    factor_count,
                    &raw mut model,
                )
            })?;
            Ok(Model(made(model)?))
        })
    }

    /// The names of the kinds of RoPE, at least one: `full_attention`, `sliding_attention`, `nope`,
    /// `vision`, ...
    #[must_use]
    pub fn layer_types(&self) -> impl ExactSizeIterator<Item = &str> {
        // SAFETY: the handle is alive.
        let count = unsafe { sys::rope_model_layer_type_count(self.0.as_ptr()) };
        (0..count).map(|t| {
            // SAFETY: `t` is in range, so the name is text that lives as long as the model.
            let name =
                unsafe { CStr::from_ptr(sys::rope_model_layer_type_name(self.0.as_ptr(), t)) };
            name.to_str().unwrap_or("")
        })
    }

    /// The number of the kind of that name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<usize> {
        self.layer_types().position(|n| n == name)
    }

    /// The kind of one layer of the language model: an index into
    /// [`layer_types`](Model::layer_types) and [`contexts`](Model::contexts). Layers without RoPE
    /// have a kind like any other.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if there is no such layer.
    pub fn layer_type(&self, layer: usize) -> Result<usize> {
        named("Model::layer_type", || {
            let layer = narrow("layer", layer)?;
            let mut t = 0;
            // SAFETY: the handle is alive, `t` is writable.
            check(unsafe { sys::rope_model_layer_type(self.0.as_ptr(), layer, &raw mut t) })?;
            Ok(t as usize) // numbered from 0
        })
    }

    /// The configuration of one kind, for what is the program's to add: device, sequence length,
    /// rounding.
    ///
    /// A number of the text that a `with_` method replaces (theta, the scaling, the head's width) does not
    /// take along what followed from it: the attention factor, the span that turns, frequency factors, and
    /// what a [note](Model::notes) says. Change the text and read it again.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if there is no such kind.
    pub fn config(&self, layer_type: usize) -> Result<Config> {
        named("Model::config", || {
            let layer_type = narrow("layer_type", layer_type)?;
            // SAFETY: the handle is alive, and the tables that the call points to live as long as it.
            Config::read(|raw| unsafe { sys::rope_model_config(self.0.as_ptr(), layer_type, raw) })
        })
    }

    /// That of one kind ([`Config::digest`] of its configuration), or with `None` that of the model:
    /// which RoPE each layer has, and the kinds that no layer has, by name. Two models with equal
    /// digests rotate alike, whatever their texts look like.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if there is no such kind, or the text
    /// leaves something to the caller: the pairing of an unknown `model_type`.
    pub fn digest(&self, layer_type: Option<usize>, same: Digest) -> Result<String> {
        named("Model::digest", || {
            let layer_type = match layer_type {
                Some(number) => narrow("layer_type", number)?,
                None => -1,
            };
            let mut digest = sys::rope_digest_text { text: [0; 80] };
            // SAFETY: the handle is alive, `digest` is writable.
            check(unsafe {
                sys::rope_model_digest(self.0.as_ptr(), layer_type, same as i32, &raw mut digest)
            })?;
            Ok(text_of(&digest))
        })
    }

    /// One context per kind. Where frequencies depend on the length of the sequence (LongRoPE,
    /// dynamic NTK), they are those of `seq_len` tokens, and right for sequences of
    /// [`Context::valid_from`] to [`Context::valid_below`]` - 1`; other models take any, and 0.
    ///
    /// ```
    /// # let (short, long) = (vec![1.25; 32], vec![1.5; 32]);
    /// # let json = format!(r#"{{"model_type": "phi3", "hidden_size": 128, "num_attention_heads": 2,
    /// #     "num_hidden_layers": 2, "max_position_embeddings": 131072, "rope_theta": 10000.0,
    /// #     "original_max_position_embeddings": 4096,
    /// #     "rope_scaling": {{"type": "longrope", "short_factor": {short:?},
    /// #                       "long_factor": {long:?}}}}}"#);
    /// # let prompt = 4090;
    /// let model = librope::Model::from_json(json)?;
    /// let mut ropes = model.contexts(prompt)?;
    /// for seq_len in prompt..prompt + 100 {
    ///     if ropes.iter().any(|rope| seq_len >= rope.valid_below()) {
    ///         ropes = model.contexts(seq_len)?; // microseconds
    ///     }
    ///     // the forward pass of a sequence of seq_len tokens
    /// }
    /// # assert_eq!(ropes[0].valid_below(), i64::MAX); // the long factors have no end
    /// # Ok::<(), librope::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Config::build`]; a negative `seq_len` is one, and so is 0 where it matters.
    pub fn contexts(&self, seq_len: i64) -> Result<Vec<Context>> {
        named("Model::contexts", || {
            let context = |layer_type| {
                // Where nothing depends on it, the library ignores it.
                self.config(layer_type)?.with_seq_len(seq_len).build()
            };
            (0..self.layer_types().len()).map(context).collect()
        })
    }
}

impl Config {
    /// The one kind of RoPE that a model's `config.json` describes. A model whose layers differ, or
    /// that has a vision tower, is an error here: see [`Model`].
    ///
    /// The text may also be a `rope_parameters` (`rope_scaling`) dictionary alone, which leaves
    /// [`with_head_dim`](Config::with_head_dim) and [`with_pairing`](Config::with_pairing) to the
    /// caller.
    ///
    /// ```
    /// let rope = librope::Config::from_json(
    ///     r#"{"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32,
    ///         "num_hidden_layers": 32, "rope_theta": 10000.0}"#,
    /// )?
    /// .build()?;
    /// assert_eq!(rope.head_dim(), 128);
    /// # Ok::<(), librope::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Parse`](crate::Error::Parse) and [`Error::Unsupported`](crate::Error::Unsupported) as
    /// [`Model::from_json`]; [`Error::InvalidArgument`](crate::Error::InvalidArgument) if there are
    /// several kinds.
    pub fn from_json(json: impl AsRef<[u8]>) -> Result<Config> {
        named("Config::from_json", || {
            let model = Model::from_json(json)?;
            let names: Vec<&str> = model.layer_types().collect();
            if names.len() != 1 {
                return invalid(format_args!(
                    "the model has {} kinds of RoPE ({}): use Model::from_json",
                    names.len(),
                    names.join(", ")
                ));
            }
            model.config(0)
        })
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        // SAFETY: made by rope_model_create, and nobody holds it any more.
        unsafe { sys::rope_model_destroy(self.0.as_ptr()) }
    }
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Model")
            .field("layer_types", &self.layer_types().collect::<Vec<_>>())
            .finish()
    }
}
