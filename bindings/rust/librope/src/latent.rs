use librope_sys::{self as sys, Init as _};

use crate::error::{Result, check, named, narrow};
use crate::model::Model;
use crate::shard_ids::zero_ids;

/// One image or video of a diffusion model, in tokens: what is left of its latents after patching (or
/// packing).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatentGrid {
    /// Frames; 1 for an image.
    pub t: i32,
    /// Rows.
    pub h: i32,
    /// Columns.
    pub w: i32,
}

/// The tokens of a diffusion transformer, for [`Model::latent_ids`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Latents<'a> {
    /// That which is made, then those that it is made from.
    pub grids: &'a [LatentGrid],
    /// Tokens of text in the attention with the latents.
    pub text: i64,
    /// Frames per second of a video. Cosmos: 0: an image; LTX-Video, LTX-2: needed.
    pub fps: f64,
    /// Of frames, rows and columns. Kandinsky 5: what ids are divided by; 0: 1. LTX-Video: pixels of a
    /// latent; 0: 8, 32, 32.
    pub scale: [f64; 3],
}

impl Model {
    /// The ids that the pipeline of diffusers gives to these tokens, for layers of a kind:
    /// `ids[axes, tokens]` for [`Positions::AxesBatchTokens`](crate::Positions::AxesBatchTokens), with
    /// the axes of its configuration, in the order of the model's attention.
    ///
    /// ```
    /// use librope::{LatentGrid, Latents, Model};
    ///
    /// let model = Model::from_json(r#"{"_class_name": "FluxTransformer2DModel"}"#)?;
    /// let image = [LatentGrid { t: 1, h: 64, w: 96 }];
    /// let ids = model.latent_ids(0, &Latents { grids: &image, text: 512, ..Latents::default() })?;
    /// assert_eq!(ids.len(), 3 * (512 + 64 * 96));
    /// # Ok::<(), librope::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for sizes that break a rule of the class,
    /// [`Error::Unsupported`](crate::Error::Unsupported) if the model is none of diffusers, and [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    pub fn latent_ids(&self, layer_type: usize, latents: &Latents<'_>) -> Result<Vec<f32>> {
        named("Model::latent_ids", || {
            let number = narrow("layer_type", layer_type)?;
            let axes = self.config(layer_type)?.axes().max(1) as i64; // at most 8
            let grids: Vec<sys::rope_latent_grid> = latents
                .grids
                .iter()
                .map(|g| sys::rope_latent_grid { t: g.t, h: g.h, w: g.w, reserved: 0 })
                .collect();
            let args = sys::rope_latent_args {
                count: narrow("latents.grids.len()", grids.len())?,
                grids: grids.as_ptr(),
                text: latents.text,
                fps: latents.fps,
                scale_t: latents.scale[0],
                scale_h: latents.scale[1],
                scale_w: latents.scale[2],
                ..sys::rope_latent_args::init()
            };
            let mut tokens = 0;
            let call = |ids: *mut f32, capacity: i64, tokens: &mut i64| {
                // SAFETY: the handle is alive, `args` has `count` grids, `ids` has `capacity` values.
                check(unsafe {
                    sys::rope_model_latent_ids(
                        self.handle(),
                        number,
                        &raw const args,
                        ids,
                        capacity,
                        tokens,
                    )
                })
            };
            call(std::ptr::null_mut(), 0, &mut tokens)?;
            let mut ids = zero_ids(usize::try_from(axes * tokens).unwrap_or(usize::MAX))?;
            call(ids.as_mut_ptr(), axes * tokens, &mut tokens)?;
            Ok(ids)
        })
    }
}
