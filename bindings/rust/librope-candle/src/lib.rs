#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![deny(missing_docs)]
#![warn(clippy::pedantic)]

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use candle_core::backend::BackendStorage as _;
use candle_core::{
    CpuStorage, CustomOp1, CustomOp3, DType, Error, Layout as CandleLayout, Result, Shape, Tensor,
    bail,
};

pub use librope;
use librope::{
    Config, Context, CosSin, Element, Layout, Operation, Pairing, Positions, Rounding, Runner,
    Step, Strides, View,
};

/// Which dimension of a tensor is which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Dims {
    /// `[batch, heads, tokens, channels]`
    Bhsd,
    /// `[batch, tokens, heads, channels]`
    Bshd,
}

/// The positions of an operation, which outlives the call that makes it.
#[derive(Clone, Debug)]
enum Ids {
    Offset(i64),
    SeqOffsets(Arc<[i64]>),
    Same(i64),
    Tokens(Arc<[i64]>),
    BatchTokens(Arc<[i64]>),
    AxesBatchTokens(Arc<[i64]>),
}

/// A rotation by positions as a candle operation. Its gradient is
/// [`Operation::Backward`].
#[derive(Clone, Debug)]
#[must_use]
pub struct Rope {
    context: Arc<Context>,
    dims: Dims,
    ids: Ids,
    cu_seqlens: Option<Arc<[i32]>>,
    freq_sets: Option<Arc<[i32]>>,
    operation: Operation,
}

impl Rope {
    /// Token `i` of every batch row is at `offset + i`.
    pub fn at_offset(context: &Arc<Context>, dims: Dims, offset: i64) -> Rope {
        Rope::new(context, dims, Ids::Offset(offset))
    }

    /// Token `i` of sequence `s` is at `offsets[s] + i`: what is cached before this step. Sequences are
    /// the batch rows, or the runs of [`with_cu_seqlens`](Rope::with_cu_seqlens).
    pub fn at_seq_offsets(context: &Arc<Context>, dims: Dims, ids: impl Into<Arc<[i64]>>) -> Rope {
        Rope::new(context, dims, Ids::SeqOffsets(ids.into()))
    }

    /// Every token is at this one position: the distance of [`Operation::Shift`].
    pub fn at_same(context: &Arc<Context>, dims: Dims, position: i64) -> Rope {
        Rope::new(context, dims, Ids::Same(position))
    }

    /// One position per token, the same for all batch rows.
    pub fn at_tokens(context: &Arc<Context>, dims: Dims, ids: impl Into<Arc<[i64]>>) -> Rope {
        Rope::new(context, dims, Ids::Tokens(ids.into()))
    }

    /// `ids[batch, tokens]`
    pub fn at_batch_tokens(context: &Arc<Context>, dims: Dims, ids: impl Into<Arc<[i64]>>) -> Rope {
        Rope::new(context, dims, Ids::BatchTokens(ids.into()))
    }

    /// `ids[axes, batch, tokens]`: `position_ids` of mrope.
    pub fn at_axes_batch_tokens(
        context: &Arc<Context>,
        dims: Dims,
        ids: impl Into<Arc<[i64]>>,
    ) -> Rope {
        Rope::new(context, dims, Ids::AxesBatchTokens(ids.into()))
    }

    fn new(context: &Arc<Context>, dims: Dims, ids: Ids) -> Rope {
        let (context, operation) = (context.clone(), Operation::Forward);
        Rope { context, dims, ids, cu_seqlens: None, freq_sets: None, operation }
    }

    /// Packed sequences in a batch of 1: sequence `s` is tokens `cu_seqlens[s]` to
    /// `cu_seqlens[s + 1] - 1`.
    pub fn with_cu_seqlens(mut self, cu_seqlens: impl Into<Arc<[i32]>>) -> Rope {
        self.cu_seqlens = Some(cu_seqlens.into());
        self
    }

    /// The frequency set of every sequence, for contexts with several.
    pub fn with_freq_sets(mut self, freq_sets: impl Into<Arc<[i32]>>) -> Rope {
        self.freq_sets = Some(freq_sets.into());
        self
    }

    /// What the operation does; its gradient is known for [`Operation::Forward`] and
    /// [`Operation::Backward`].
    pub fn with_operation(mut self, operation: Operation) -> Rope {
        self.operation = operation;
        self
    }

    /// The rotated tensor, contiguous, with the shape of `xs`.
    ///
    /// # Errors
    /// For a tensor that is not 4-D on the CPU in f32, f16 or bf16, or does not fit the positions.
    pub fn apply(&self, xs: &Tensor) -> Result<Tensor> {
        xs.apply_op1(self.clone())
    }

    fn step(&self, batch: usize, tokens: usize) -> Step<'_> {
        let positions = match &self.ids {
            Ids::Offset(offset) => Positions::Offset(*offset),
            Ids::SeqOffsets(offsets) => Positions::seq_offsets(&offsets[..]),
            Ids::Same(position) => Positions::Same(*position),
            Ids::Tokens(ids) => Positions::tokens(&ids[..]),
            Ids::BatchTokens(ids) => Positions::batch_tokens(&ids[..]),
            Ids::AxesBatchTokens(ids) => Positions::axes_batch_tokens(&ids[..]),
        };
        let mut step = Step::new(batch, tokens, positions).with_operation(self.operation);
        if let Some(cu_seqlens) = &self.cu_seqlens {
            step = step.with_cu_seqlens(cu_seqlens);
        }
        if let Some(freq_sets) = &self.freq_sets {
            step = step.with_freq_sets(freq_sets);
        }
        step
    }
}

/// The operation whose application to the gradient of a result is the gradient of the argument.
fn transposed(operation: Operation) -> Result<Operation> {
    match operation {
        Operation::Forward => Ok(Operation::Backward),
        Operation::Backward => Ok(Operation::Forward),
        other => bail!("librope has no gradient of {other:?}"),
    }
}

impl CustomOp1 for Rope {
    fn name(&self) -> &'static str {
        "librope"
    }

    fn cpu_fwd(&self, xs: &CpuStorage, layout: &CandleLayout) -> Result<(CpuStorage, Shape)> {
        let (batch, tokens, _) = sizes(layout, self.dims)?;
        let step = self.step(batch, tokens);
        rotate_storage(&self.context, &step, xs, layout, self.dims)
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, grad_res: &Tensor) -> Result<Option<Tensor>> {
        let op = Rope { operation: transposed(self.operation)?, ..self.clone() };
        Ok(Some(op.apply(grad_res)?))
    }
}

/// `(batch, tokens, heads)`
fn sizes(layout: &CandleLayout, dims: Dims) -> Result<(usize, usize, usize)> {
    let (b, x, y, _) = layout.shape().dims4()?;
    Ok(match dims {
        Dims::Bhsd => (b, y, x),
        Dims::Bshd => (b, x, y),
    })
}

fn rotate_storage(
    context: &Context,
    step: &Step<'_>,
    xs: &CpuStorage,
    layout: &CandleLayout,
    dims: Dims,
) -> Result<(CpuStorage, Shape)> {
    let storage = match xs {
        CpuStorage::F32(xs) => CpuStorage::F32(rotate(context, step, xs, layout, dims)?),
        CpuStorage::F16(xs) => CpuStorage::F16(rotate(context, step, xs, layout, dims)?),
        CpuStorage::BF16(xs) => CpuStorage::BF16(rotate(context, step, xs, layout, dims)?),
        other => return wrong_dtype(other.dtype()),
    };
    Ok((storage, layout.shape().clone()))
}

fn wrong_dtype<T>(dtype: DType) -> Result<T> {
    bail!("librope takes f32, f16 and bf16, not {}", dtype.as_str())
}

/// The rotated elements of a tensor, in order.
fn rotate<T: Element>(
    context: &Context,
    step: &Step<'_>,
    xs: &[T],
    layout: &CandleLayout,
    dims: Dims,
) -> Result<Vec<T>> {
    let (_, _, heads) = sizes(layout, dims)?;
    let (shape, strides) = (layout.dims(), layout.stride());
    let channels = shape[3];
    if channels != context.head_dim() {
        bail!("librope: {channels} channels, and the context's head_dim is {}", context.head_dim());
    }
    if channels > 1 && strides[3] != 1 {
        bail!("librope: channels are {} elements apart, and must be adjacent", strides[3]);
    }
    let order = match dims {
        Dims::Bhsd => Strides { batch: strides[0], head: strides[1], token: strides[2] },
        Dims::Bshd => Strides { batch: strides[0], token: strides[1], head: strides[2] },
    };
    if layout.shape().elem_count() == 0 {
        return Ok(Vec::new());
    }
    let input = View::strided(&xs[layout.start_offset()..], heads, order);
    let contiguous = if dims == Dims::Bhsd { Layout::Bhsd } else { Layout::Bshd };
    // As candle: on the rayon pool of the caller. Calls of up to 2 MiB stay on this thread.
    let step = step.with_runner(Runner::rayon());
    context.apply_to_vec(&step, input, contiguous).map_err(Error::wrap)
}

/// `candle_nn::rotary_emb` for one pairing: cos and sin are tensors.
#[derive(Clone, Copy, Debug)]
struct ByRows {
    pairing: Pairing,
    dims: Dims,
    operation: Operation,
}

/// A context per pairing and `head_dim`: rows bring the angles, so theta plays no part.
fn context(pairing: Pairing, head_dim: usize) -> Result<&'static Context> {
    const WIDEST: usize = 1024;
    static HALVES: [OnceLock<Context>; WIDEST / 2] = [const { OnceLock::new() }; WIDEST / 2];
    static INTERLEAVED: [OnceLock<Context>; WIDEST / 2] = [const { OnceLock::new() }; WIDEST / 2];

    if !(2..=WIDEST).contains(&head_dim) || head_dim % 2 != 0 {
        bail!("librope: {head_dim} channels must be an even number up to {WIDEST}");
    }
    let all = match pairing {
        Pairing::Halves => &HALVES,
        Pairing::Interleaved => &INTERLEAVED,
        other => bail!("librope: rows of candle are not those of {other:?}"),
    };
    let slot = &all[head_dim / 2 - 1];
    if let Some(context) = slot.get() {
        return Ok(context);
    }
    // candle rounds after every operation. So does this, for the same bits.
    let config = Config::new(head_dim, 1.0e4, pairing).with_rounding(Rounding::Eager);
    let context = config.build().map_err(Error::wrap)?;
    Ok(slot.get_or_init(|| context))
}

/// The part of a table that the call reads, as it lies in memory.
fn rows<'a, T>(name: &str, storage: &'a [T], layout: &CandleLayout) -> Result<&'a [T]> {
    match layout.contiguous_offsets() {
        Some((from, to)) => Ok(&storage[from..to]),
        None => bail!("{name} has to be contiguous in rope"),
    }
}

impl CustomOp3 for ByRows {
    fn name(&self) -> &'static str {
        "librope"
    }

    fn cpu_fwd(
        &self,
        xs: &CpuStorage,
        layout: &CandleLayout,
        cos: &CpuStorage,
        cos_layout: &CandleLayout,
        sin: &CpuStorage,
        sin_layout: &CandleLayout,
    ) -> Result<(CpuStorage, Shape)> {
        let (batch, tokens, _) = sizes(layout, self.dims)?;
        let context = context(self.pairing, layout.dims()[3])?;
        macro_rules! tables {
            ($cos:expr, $sin:expr) => {
                CosSin::split(rows("cos", $cos, cos_layout)?, rows("sin", $sin, sin_layout)?)
            };
        }
        let rows = match (xs, cos, sin) {
            (CpuStorage::F32(_), CpuStorage::F32(c), CpuStorage::F32(s)) => tables!(c, s),
            (CpuStorage::F16(_), CpuStorage::F16(c), CpuStorage::F16(s)) => tables!(c, s),
            (CpuStorage::BF16(_), CpuStorage::BF16(c), CpuStorage::BF16(s)) => tables!(c, s),
            _ => bail!(
                "librope: xs ({:?}), cos ({:?}) and sin ({:?}) must have one dtype: f32, f16 or bf16",
                xs.dtype(),
                cos.dtype(),
                sin.dtype()
            ),
        };
        let shared = cos_layout.dims().len() == 2;
        let rows = if shared { rows.shared() } else { rows };
        let step = Step::with_rows(batch, tokens, rows).with_operation(self.operation);
        rotate_storage(context, &step, xs, layout, self.dims)
    }

    fn bwd(
        &self,
        _: &Tensor,
        cos: &Tensor,
        sin: &Tensor,
        _: &Tensor,
        grad_res: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        for (name, table) in [("cos", cos), ("sin", sin)] {
            if table.track_op() {
                bail!(
                    "librope: {name} is a variable or computed from one, and has no gradient here: use \
                     {name}.detach(), or candle_nn::rotary_emb::rope_slow and rope_i_slow to train it"
                );
            }
        }
        let op = ByRows { operation: transposed(self.operation)?, ..*self };
        Ok((Some(grad_res.apply_op3(cos, sin, op)?), None, None))
    }
}

/// The checks of candle's functions, and a table with one row per token of the call.
fn table<'a>(
    name: &str,
    table: &'a Tensor,
    batch: usize,
    tokens: usize,
    channels: usize,
) -> Result<Cow<'a, Tensor>> {
    let (length, width) = match *table.dims() {
        [t, d] => (t, d),
        [b, t, d] if b == batch => (t, d),
        [_, _, _] => bail!("inconsistent batch size in rope {batch} {table:?}"),
        _ => bail!("cos/sin has to be 2D or 3D in rope {batch} {table:?}"),
    };
    if width * 2 != channels || tokens > length {
        bail!(
            "inconsistent last dim size in rope: {tokens} tokens of {channels} channels, {name} {:?}",
            table.shape()
        );
    }
    if !table.is_contiguous() {
        bail!("{name} has to be contiguous in rope");
    }
    // Rows of one batch row follow those of the one before it, so surplus rows must go.
    if table.rank() == 3 && batch > 1 && tokens < length {
        return Ok(Cow::Owned(table.narrow(1, 0, tokens)?.contiguous()?));
    }
    Ok(Cow::Borrowed(table))
}

fn by_rows(
    xs: &Tensor,
    cos: &Tensor,
    sin: &Tensor,
    pairing: Pairing,
    dims: Dims,
) -> Result<Tensor> {
    let (batch, tokens, _) = sizes(xs.layout(), dims)?;
    let channels = xs.dims()[3];
    if cos.rank() != sin.rank() {
        bail!("cos {:?} and sin {:?} must both be 2D or both be 3D", cos.shape(), sin.shape());
    }
    let cos = table("cos", cos, batch, tokens, channels)?;
    let sin = table("sin", sin, batch, tokens, channels)?;
    if !matches!(xs.dtype(), DType::F32 | DType::F16 | DType::BF16) {
        return wrong_dtype(xs.dtype());
    }
    let op = ByRows { pairing, dims, operation: Operation::Forward };
    // Recording an operation keeps its tables alive: only where a gradient may be asked for, also of tables,
    // which `bwd` refuses.
    if [xs, &cos, &sin].into_iter().any(Tensor::track_op) {
        xs.apply_op3(&cos, &sin, op)
    } else {
        xs.apply_op3_no_bwd(&cos, &sin, &op)
    }
}

/// `candle_nn::rotary_emb::rope`: `xs[batch, heads, tokens, channels]`, pairs half a head apart, cos
/// and sin `[tokens, channels / 2]` or `[batch, tokens, channels / 2]`. The same bits, any strides of
/// `xs`, and its gradient. Tables are constants: where they are variables or computed from such, `backward`
/// through the result is an error.
///
/// # Errors
/// For tensors that are not on the CPU in one of f32, f16 and bf16, or whose shapes do not fit.
pub fn rope(xs: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    by_rows(xs, cos, sin, Pairing::Halves, Dims::Bhsd)
}

/// `candle_nn::rotary_emb::rope_i`: as [`rope`], with adjacent pairs.
///
/// # Errors
/// As of [`rope`].
pub fn rope_i(xs: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    by_rows(xs, cos, sin, Pairing::Interleaved, Dims::Bhsd)
}

/// `candle_nn::rotary_emb::rope_thd`: as [`rope`], for `xs[batch, tokens, heads, channels]`.
///
/// # Errors
/// As of [`rope`].
pub fn rope_thd(xs: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    by_rows(xs, cos, sin, Pairing::Halves, Dims::Bshd)
}

/// `candle_nn::rotary_emb::rope_slow`, so that a model that names it for the gradient of `xs` compiles
/// with another `use`: it is [`rope`], for which nothing is slow. candle's also has gradients of cos and
/// sin.
///
/// # Errors
/// As of [`rope`].
pub fn rope_slow(xs: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    rope(xs, cos, sin)
}

/// `candle_nn::rotary_emb::rope_i_slow`: it is [`rope_i`].
///
/// # Errors
/// As of [`rope`].
pub fn rope_i_slow(xs: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    rope_i(xs, cos, sin)
}
