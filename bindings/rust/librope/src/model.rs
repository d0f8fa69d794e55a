use std::ffi::{CStr, CString};
use std::fmt;
use std::path::Path;
use std::ptr::{self, NonNull};

use librope_sys as sys;

use crate::config::Config;
use crate::context::Context;
use crate::error::{Result, check, invalid, made, narrow, require_library};

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

impl Model {
    /// Reads a model's `config.json`, or its `rope_parameters` (`rope_scaling`) dictionary alone,
    /// which has no layers. The text is untrusted; what it does not say clearly is
    /// [`Error::Parse`](crate::Error::Parse).
    ///
    /// # Errors
    /// [`Error::Parse`](crate::Error::Parse) for what is not JSON, or lacks a key, or has an impossible
    /// value; [`Error::Unsupported`](crate::Error::Unsupported) for a model without RoPE.
    pub fn from_json(json: impl AsRef<[u8]>) -> Result<Model> {
        require_library()?;
        let json = json.as_ref();
        let mut model = ptr::null_mut();
        // SAFETY: `json` has `len` bytes and is not kept.
        check(unsafe { sys::rope_model_create(json.as_ptr().cast(), json.len(), &raw mut model) })?;
        Ok(Model(made(model)?))
    }

    /// The same for a caller who knows of some keys that they change nothing, by name (`attn_factor`) or
    /// path (`text_config.rope_scaling.attn_factor`): the text is not refused because of them.
    ///
    /// # Errors
    /// Those of [`from_json`](Model::from_json);
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for a name that spares no key.
    pub fn from_json_accepting(json: impl AsRef<[u8]>, accepted_keys: &[&str]) -> Result<Model> {
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
    }

    /// What the text says that programs treat differently and that is no part of a configuration: at
    /// present, `dual_chunk_attention_config`.
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
        require_library()?;
        let bytes = bytes.as_ref();
        let mut model = ptr::null_mut();
        // SAFETY: `bytes` has `len` bytes and is not kept.
        check(unsafe {
            sys::rope_model_create_gguf(bytes.as_ptr().cast(), bytes.len(), &raw mut model)
        })?;
        Ok(Model(made(model)?))
    }

    /// [`from_gguf`](Model::from_gguf) for a file, of which it reads as much as it needs.
    ///
    /// # Errors
    /// Those of [`from_gguf`](Model::from_gguf), and
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if the file cannot be read.
    pub fn load_gguf(path: impl AsRef<Path>) -> Result<Model> {
        require_library()?;
        let name = path.as_ref().as_os_str().as_encoded_bytes();
        let Ok(name) = CString::new(name) else {
            return invalid(format_args!("path must not contain a zero byte"));
        };
        let mut model = ptr::null_mut();
        // SAFETY: `name` ends with a zero byte and is not kept.
        check(unsafe { sys::rope_model_load_gguf(name.as_ptr(), &raw mut model) })?;
        Ok(Model(made(model)?))
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
        let layer = narrow("layer", layer)?;
        let mut t = 0;
        // SAFETY: the handle is alive, `t` is writable.
        check(unsafe { sys::rope_model_layer_type(self.0.as_ptr(), layer, &raw mut t) })?;
        Ok(t as usize) // numbered from 0
    }

    /// The configuration of one kind, for what is the program's to add: device, sequence length,
    /// rounding.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if there is no such kind.
    pub fn config(&self, layer_type: usize) -> Result<Config> {
        let layer_type = narrow("layer_type", layer_type)?;
        // SAFETY: the handle is alive, and the tables that the call points to live as long as it.
        Config::read(|raw| unsafe { sys::rope_model_config(self.0.as_ptr(), layer_type, raw) })
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
        let context = |layer_type| {
            // Where nothing depends on it, the library ignores it.
            self.config(layer_type)?.with_seq_len(seq_len).build()
        };
        (0..self.layer_types().len()).map(context).collect()
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
