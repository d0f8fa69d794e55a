use std::ffi::CStr;
use std::fmt;
use std::ptr::{self, NonNull};

use librope_sys as sys;

use crate::config::Config;
use crate::context::Context;
use crate::error::{Result, check};

/// A model's `config.json`: its kinds of RoPE, and which layer is of which kind.
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
/// let ropes = model.contexts()?; // one per kind
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
    pub fn from_json(json: impl AsRef<[u8]>) -> Result<Model> {
        let json = json.as_ref();
        let mut model = ptr::null_mut();
        // SAFETY: `json` has `len` bytes and is not kept.
        check(unsafe { sys::rope_model_create(json.as_ptr().cast(), json.len(), &mut model) })?;
        Ok(Model(NonNull::new(model).expect("rope_model_create makes a model")))
    }

    /// The names of the kinds of RoPE, at least one: `full_attention`, `sliding_attention`, `nope`,
    /// `vision`, ...
    pub fn layer_types(&self) -> impl ExactSizeIterator<Item = &str> {
        // SAFETY: the handle is alive.
        let count = unsafe { sys::rope_model_layer_types(self.0.as_ptr()) };
        (0..count).map(|t| {
            // SAFETY: `t` is in range, so the name is text that lives as long as the model.
            let name =
                unsafe { CStr::from_ptr(sys::rope_model_layer_type_name(self.0.as_ptr(), t)) };
            name.to_str().unwrap_or("")
        })
    }

    /// The number of the kind of that name.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.layer_types().position(|n| n == name)
    }

    /// The kind of one layer of the language model: an index into
    /// [`layer_types`](Model::layer_types) and [`contexts`](Model::contexts). Layers without RoPE
    /// have a kind like any other.
    pub fn layer_type(&self, layer: usize) -> Result<usize> {
        let layer = i32::try_from(layer).unwrap_or(i32::MAX);
        let mut t = 0;
        // SAFETY: the handle is alive, `t` is writable.
        check(unsafe { sys::rope_model_layer_type(self.0.as_ptr(), layer, &mut t) })?;
        Ok(usize::try_from(t).expect("kinds are numbered from 0"))
    }

    /// The configuration of one kind, for what is the program's to add: device, sequence length,
    /// rounding.
    pub fn config(&self, layer_type: usize) -> Result<Config> {
        let layer_type = i32::try_from(layer_type).unwrap_or(i32::MAX);
        // SAFETY: the handle is alive, and the tables that the call points to live as long as it.
        Config::read(|raw| unsafe { sys::rope_model_config(self.0.as_ptr(), layer_type, raw) })
    }

    /// One context per kind, made from the configurations as they are.
    pub fn contexts(&self) -> Result<Vec<Context>> {
        (0..self.layer_types().len()).map(|t| self.config(t)?.build()).collect()
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
