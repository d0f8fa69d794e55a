//! Calls on device memory: the bits of the same calls on slices, and nothing else is written. Without a GPU every
//! test but one says why it is skipped.

mod common;

use std::cell::Cell;
use std::ffi::c_void;
use std::fmt::Debug;
use std::io::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use common::{Number, Random, refused};
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr as _};
use librope::cuda::{self, Operand, Tensor};
use librope::half::{bf16, f16};
use librope::{
    Angle, Config, Context, DType, Device, Error, Layout, Operation, Pairing, Part, Positions,
    Scaling, Shard, Step, Strides, View, ViewMut, Yarn,
};

const BATCH: usize = 3;
const TOKENS: usize = 5;
const HEADS: [usize; 2] = [4, 2]; // of q and k
const DIM: usize = 64;

fn config() -> Config {
    Config::new(DIM, 10000.0, Pairing::Halves).with_angle(Angle::Exact)
}

fn bytes_of<T: Copy>(values: &[T]) -> &[u8] {
    // SAFETY: numbers without padding.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// A stream of the first device. One test at a time has it: where one captures, no other may synchronise.
struct Gpu {
    stream: Arc<CudaStream>,
    _alone: MutexGuard<'static, ()>,
}

/// A copy in its memory, between bytes that nobody writes.
struct Memory {
    bytes: CudaSlice<u8>,
    stream: Arc<CudaStream>,
}

const MARGIN: usize = 256;
const CANARY: u8 = 0xa5;

impl Gpu {
    fn new() -> Option<Gpu> {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        match config().with_device(Device::Cuda(0)).build() {
            Err(Error::Unavailable(reason)) => {
                // The harness shows nothing that a test prints unless it fails.
                let line = format!("skipped: {reason}\n");
                std::io::stderr().write_all(line.as_bytes()).unwrap();
                None
            }
            rope => {
                assert!(rope.unwrap().backend().starts_with("cuda:0 "));
                let gpu = CudaContext::new(0).unwrap();
                // SAFETY: each test has one stream, and all its memory belongs to that.
                unsafe { gpu.disable_event_tracking() };
                Some(Gpu { stream: gpu.new_stream().unwrap(), _alone: alone })
            }
        }
    }

    fn copy<T: Copy>(&self, values: &[T]) -> Memory {
        let margin = [CANARY; MARGIN];
        let all = [&margin, bytes_of(values), &margin].concat();
        Memory { bytes: self.stream.clone_htod(&all).unwrap(), stream: self.stream.clone() }
    }

    fn handle(&self) -> *mut c_void {
        self.stream.cu_stream().cast()
    }
}

impl Memory {
    fn at<T>(&self) -> *mut T {
        (self.bytes.device_ptr(&self.stream).0 as usize + MARGIN) as *mut T
    }

    fn read(&self) -> Vec<u8> {
        let all = self.stream.clone_dtoh(&self.bytes).unwrap();
        self.stream.synchronize().unwrap();
        let (first, rest) = all.split_at(MARGIN);
        let (own, last) = rest.split_at(rest.len() - MARGIN);
        assert!([first, last].concat().iter().all(|&byte| byte == CANARY), "beside its memory");
        own.to_vec()
    }

    #[track_caller]
    fn is<T: Copy + Debug>(&self, want: &[T]) {
        let (got, want, each) = (self.read(), bytes_of(want), size_of::<T>());
        assert_eq!(got.len(), want.len());
        let other = got.chunks(each).zip(want.chunks(each)).position(|(got, want)| got != want);
        assert_eq!(other, None, "the first element that is not the CPU's");
    }
}

/// One configuration on both devices.
struct Ropes {
    cpu: Context,
    gpu: Context,
    random: Cell<u64>,
}

impl Ropes {
    fn new(configs: &[Config]) -> Ropes {
        let there: Vec<Config> =
            configs.iter().map(|config| config.clone().with_device(Device::Cuda(0))).collect();
        let (cpu, gpu) = (Context::with_sets(configs), Context::with_sets(&there));
        Ropes { cpu: cpu.unwrap(), gpu: gpu.unwrap(), random: Cell::new(1) }
    }

    /// q and k of a step, in a contiguous layout: in place, out of place, and each alone.
    #[track_caller]
    fn compare<T: Number>(&self, gpu: &Gpu, layout: Layout, step: &Step, there: cuda::Step) {
        let there = there.with_stream(gpu.handle());
        let mut random = Random(self.random.get() + 1);
        let tokens = there.batch * there.tokens;
        let [q, k] = HEADS.map(|heads| random.vec::<T>(tokens * heads * self.cpu.head_dim()));
        self.random.set(random.next());
        let (mut want_q, mut want_k) = (q.clone(), k.clone());
        let view = |data| ViewMut::new(data, layout, HEADS[0]);
        let view_k = |data| ViewMut::new(data, layout, HEADS[1]);
        self.cpu.apply(step, view(&mut want_q), view_k(&mut want_k)).unwrap();
        assert!(bytes_of(&want_q) != bytes_of(&q) && bytes_of(&want_k) != bytes_of(&k));

        let tensor = |memory: &Memory, heads| Tensor::new(memory.at(), T::DTYPE, layout, heads);
        let turn = |q, k| {
            // SAFETY: memory of these shapes, which is read on the same stream.
            unsafe { self.gpu.apply_cuda(&there, q, k) }.unwrap();
        };
        let (turned_q, turned_k) = (gpu.copy(&q), gpu.copy(&k));
        let in_place = Operand::in_place;
        turn(in_place(tensor(&turned_q, HEADS[0])), in_place(tensor(&turned_k, HEADS[1])));
        turned_q.is(&want_q);
        turned_k.is(&want_k);

        let (from, to) = (gpu.copy(&q), gpu.copy(&vec![T::from_f64(9.0); q.len()]));
        let apart = Operand::out_of_place(tensor(&from, HEADS[0]), tensor(&to, HEADS[0]));
        let same = gpu.copy(&k);
        let onto_itself = Operand::out_of_place(tensor(&same, HEADS[1]), tensor(&same, HEADS[1]));
        turn(apart, onto_itself);
        from.is(&q);
        to.is(&want_q);
        same.is(&want_k);

        let (only_q, only_k) = (gpu.copy(&q), gpu.copy(&k));
        turn(in_place(tensor(&only_q, HEADS[0])), Operand::none());
        turn(Operand::none(), in_place(tensor(&only_k, HEADS[1])));
        only_q.is(&want_q);
        only_k.is(&want_k);
    }
}

#[test]
fn types_layouts_and_pairings() {
    let Some(gpu) = Gpu::new() else { return };
    let lengths = [0i32, 7, 100_000];
    let on_gpu = gpu.copy(&lengths);
    let step = Step::new(BATCH, TOKENS, Positions::seq_offsets(&lengths));
    let there = cuda::Step::new(BATCH, TOKENS, cuda::Positions::SeqOffsetsI32(on_gpu.at()));
    for pairing in [Pairing::Halves, Pairing::Interleaved] {
        for angle in [Angle::Exact, Angle::Float32] {
            let ropes = Ropes::new(&[config().with_pairing(pairing).with_angle(angle)]);
            for layout in [Layout::Bshd, Layout::Bhsd, Layout::Sbhd] {
                ropes.compare::<f32>(&gpu, layout, &step, there);
                ropes.compare::<f16>(&gpu, layout, &step, there);
                ropes.compare::<bf16>(&gpu, layout, &step, there);
            }
        }
    }
}

#[test]
fn positions_of_all_kinds() {
    let Some(gpu) = Gpu::new() else { return };
    let count = BATCH * TOKENS;
    let mut random = Random(5);
    let wide: Vec<i64> = (0..3 * count).map(|_| random.below(200_000) as i64).collect();
    let narrow: Vec<i32> = wide.iter().map(|&id| id as i32).collect();
    let floats: Vec<f32> = wide.iter().map(|&id| id as f32 + 0.25).collect();
    let (i64s, i32s, f32s) = (gpu.copy(&wide), gpu.copy(&narrow), gpu.copy(&floats));
    let (far, near) = (&wide[..], &narrow[..]);
    let ropes = Ropes::new(&[config()]);
    for (here, there) in [
        (Positions::Offset(1 << 40), cuda::Positions::Offset(1 << 40)),
        (Positions::seq_offsets(&near[..BATCH]), cuda::Positions::SeqOffsetsI32(i32s.at())),
        (Positions::seq_offsets(&far[..BATCH]), cuda::Positions::SeqOffsetsI64(i64s.at())),
        (Positions::Same(far[0]), cuda::Positions::SameI32(i32s.at())),
        (Positions::Same(far[0]), cuda::Positions::SameI64(i64s.at())),
        (Positions::tokens(&near[..TOKENS]), cuda::Positions::TokensI32(i32s.at())),
        (Positions::tokens(&far[..TOKENS]), cuda::Positions::TokensI64(i64s.at())),
        (Positions::batch_tokens(&near[..count]), cuda::Positions::BatchTokensI32(i32s.at())),
        (Positions::batch_tokens(&far[..count]), cuda::Positions::BatchTokensI64(i64s.at())),
    ] {
        let step = Step::new(BATCH, TOKENS, here);
        let there = cuda::Step::new(BATCH, TOKENS, there);
        ropes.compare::<f32>(&gpu, Layout::Bshd, &step, there);
    }
    let ropes = Ropes::new(&[config().with_mrope(&[16, 8, 8], false)]);
    for (here, there) in [
        (Positions::axes_batch_tokens(near), cuda::Positions::AxesBatchTokensI32(i32s.at())),
        (Positions::axes_batch_tokens(far), cuda::Positions::AxesBatchTokensI64(i64s.at())),
        (Positions::batch_tokens_axes(&floats), cuda::Positions::BatchTokensAxesF32(f32s.at())),
    ] {
        let step = Step::new(BATCH, TOKENS, here);
        let there = cuda::Step::new(BATCH, TOKENS, there);
        ropes.compare::<bf16>(&gpu, Layout::Bshd, &step, there);
    }
}

#[test]
fn operations_sequences_sets_and_shards() {
    let Some(gpu) = Gpu::new() else { return };
    let yarn = config().with_scaling(Scaling::Yarn(Yarn::new(4.0, 4096))); // its factor is not 1
    let ropes = Ropes::new(std::slice::from_ref(&yarn));
    let at = (Positions::Offset(77), cuda::Positions::Offset(77));
    for operation in [Operation::Forward, Operation::Backward, Operation::Inverse] {
        let step = Step::new(BATCH, TOKENS, at.0).with_operation(operation);
        let there = cuda::Step::new(BATCH, TOKENS, at.1).with_operation(operation);
        ropes.compare::<f16>(&gpu, Layout::Bshd, &step, there);
    }
    let distance = gpu.copy(&[-1000i32]);
    let step = Step::new(BATCH, TOKENS, Positions::Same(-1000)).with_operation(Operation::Shift);
    let there = cuda::Step::new(BATCH, TOKENS, cuda::Positions::SameI32(distance.at()));
    let there = there.with_operation(Operation::Shift);
    ropes.compare::<f32>(&gpu, Layout::Bshd, &step, there);

    // Four packed sequences, one of which is empty.
    let (starts, lengths, sets) = ([0, 3, 3, 4, 16], [9i64, 0, 100_000, 5], [1, 0, 0, 1]);
    let (gpu_starts, gpu_lengths) = (gpu.copy(&starts), gpu.copy(&lengths));
    let gpu_sets = gpu.copy(&sets);
    let step = Step::new(1, 16, Positions::seq_offsets(&lengths)).with_cu_seqlens(&starts);
    let there = cuda::Step::new(1, 16, cuda::Positions::SeqOffsetsI64(gpu_lengths.at()));
    let there = there.with_cu_seqlens(gpu_starts.at(), 4);
    ropes.compare::<bf16>(&gpu, Layout::Bshd, &step, there);
    let two = Ropes::new(&[config(), yarn]);
    let (step, there) = (step.with_freq_sets(&sets), there.with_freq_sets(gpu_sets.at()));
    two.compare::<f32>(&gpu, Layout::Bshd, &step, there);

    for shard in [
        Shard::contiguous(1, 2),
        Shard::zigzag(1, 2).then(Shard::contiguous(0, 2)),
        Shard::striped(2, 4, 2),
        Shard::heads(0, 2),
    ] {
        let step = Step::new(BATCH, 8, at.0).with_shard(shard);
        let there = cuda::Step::new(BATCH, 8, at.1).with_shard(shard);
        ropes.compare::<f32>(&gpu, Layout::Bshd, &step, there);
    }
}

fn packed<T: Number>(gpu: &Gpu) {
    let ropes = Ropes::new(&[config()]);
    let ids: Vec<i32> = (0..TOKENS as i32).map(|i| 1000 - 3 * i).collect();
    let on_gpu = gpu.copy(&ids);
    let row = (HEADS[0] + 2 * HEADS[1]) * DIM;
    let mut qkv: Vec<T> = Random(2).vec(BATCH * TOKENS * row); // [batch, tokens, q k v, DIM]
    let there = gpu.copy(&qkv);
    let strides = Strides { batch: TOKENS * row, token: row, head: DIM };
    let part = |before, heads| Part::new(before * DIM, heads, strides);
    let step = Step::new(BATCH, TOKENS, Positions::tokens(&ids));
    let (q, k) = (part(0, HEADS[0]), part(HEADS[0], HEADS[1]));
    ropes.cpu.apply_packed(&step, &mut qkv, q, k).unwrap();

    let tensor = |before: usize, heads| {
        let data = there.at::<T>().wrapping_add(before * DIM).cast();
        Operand::in_place(Tensor::new(data, T::DTYPE, Layout::Strided(strides), heads))
    };
    let step = cuda::Step::new(BATCH, TOKENS, cuda::Positions::TokensI32(on_gpu.at()));
    let step = step.with_stream(gpu.handle());
    let (q, k) = (tensor(0, HEADS[0]), tensor(HEADS[0], HEADS[1]));
    // SAFETY: two parts of one buffer, which is read on the same stream.
    unsafe { ropes.gpu.apply_cuda(&step, q, k) }.unwrap();
    there.is(&qkv);
}

#[test]
fn packed_projections() {
    let Some(gpu) = Gpu::new() else { return };
    packed::<f32>(&gpu);
    packed::<f16>(&gpu);
    packed::<bf16>(&gpu);
}

/// The rotated half of heads alone, into another type, on the default stream.
#[test]
fn spans_and_other_types() {
    let Some(gpu) = Gpu::new() else { return };
    let ropes = Ropes::new(&[config().with_rotary_dim(DIM / 2)]);
    let spans: Vec<f32> = Random(3).vec(TOKENS * DIM / 2);
    let mut want = vec![bf16::ZERO; spans.len()];
    let step = Step::new(1, TOKENS, Positions::Offset(5));
    let views = (View::bshd(&spans, 1).span(), ViewMut::bshd(&mut want, 1).span());
    ropes.cpu.apply(&step, (), views).unwrap();

    let (from, to) = (gpu.copy(&spans), gpu.copy(&vec![bf16::ONE; spans.len()]));
    gpu.stream.synchronize().unwrap();
    let tensor = |memory: &Memory, dtype| Tensor::new(memory.at(), dtype, Layout::Bshd, 1).span();
    let k = Operand::out_of_place(tensor(&from, DType::F32), tensor(&to, DType::Bf16));
    let step = cuda::Step::new(1, TOKENS, cuda::Positions::Offset(5));
    // SAFETY: memory of these shapes, which is read after all has run.
    unsafe { ropes.gpu.apply_cuda(&step, Operand::none(), k) }.unwrap();
    gpu.stream.context().synchronize().unwrap(); // the default stream is not that of the memory
    to.is(&want);
    from.is(&spans);
}

#[test]
fn graphs_replay_with_the_lengths_of_the_moment() {
    let Some(gpu) = Gpu::new() else { return };
    let Ropes { cpu, gpu: rope, .. } = Ropes::new(&[config()]);
    let mut q: Vec<f16> = Random(4).vec(BATCH * HEADS[0] * DIM);
    let turned = gpu.copy(&q);
    let mut lengths = gpu.stream.clone_htod(&[0i64; BATCH]).unwrap();
    let at = lengths.device_ptr(&gpu.stream).0 as *const i64;
    let step = cuda::Step::new(BATCH, 1, cuda::Positions::SeqOffsetsI64(at));
    let tensor = Tensor::new(turned.at(), DType::F16, Layout::Bshd, HEADS[0]);
    gpu.stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).unwrap();
    // SAFETY: memory of these shapes, which outlives the graph.
    let captured = unsafe {
        let step = step.with_stream(gpu.handle());
        rope.apply_cuda(&step, Operand::in_place(tensor), Operand::none())
    };
    let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let graph = gpu.stream.end_capture(flags).unwrap().expect("a graph");
    captured.unwrap();
    drop(rope);
    turned.is(&q);
    for now in [[0, 1, 2], [70_000, 3, 1 << 40], [1, 1, 1]] {
        gpu.stream.memcpy_htod(&now, &mut lengths).unwrap();
        graph.launch().unwrap();
        let step = Step::new(BATCH, 1, Positions::seq_offsets(&now));
        cpu.apply(&step, ViewMut::bshd(&mut q, HEADS[0]), ()).unwrap();
        turned.is(&q);
    }
}

#[test]
fn refusals_write_nothing() {
    let Some(gpu) = Gpu::new() else { return };
    let rope = Ropes::new(&[config()]).gpu;
    let mut host: Vec<f32> = Random(6).vec(TOKENS * DIM);
    let memory = gpu.copy(&host);
    let at = cuda::Positions::Offset(1);
    let step = cuda::Step::new(1, TOKENS, at).with_stream(gpu.handle());
    let q = Tensor::new(memory.at(), DType::F32, Layout::Bshd, 1);
    let says = |step: &cuda::Step, q: Operand, k: Operand, words: &str| {
        // SAFETY: the calls are refused.
        let message = refused(unsafe { rope.apply_cuda(step, q, k) });
        assert!(message.contains(words), "{message}");
    };
    let (none, in_place) = (Operand::none(), Operand::in_place);
    let of = |data, layout, heads| in_place(Tensor::new(data, DType::F32, layout, heads));
    let data = memory.at::<c_void>();
    says(&step, none, none, "q");
    says(&step, of(data, Layout::Bshd, 0), none, "q.heads (0)");
    let many = format!("heads ({})", usize::MAX);
    says(&step, none, of(data, Layout::Bshd, usize::MAX), &many);
    says(&step, of(data, Layout::Nhd, 1), none, "layout");
    says(&step, of(data, Layout::Hnd, 1), none, "layout");
    says(&step, of(std::ptr::null_mut(), Layout::Bshd, 1), none, "q.data");
    says(&step, of(data.wrapping_byte_add(1), Layout::Bshd, 1), none, "q.data");
    let far = Strides { batch: 0, token: usize::MAX, head: DIM };
    says(&step, of(data, Layout::Strided(far), 1), none, "stride");
    says(&cuda::Step::new(1, usize::MAX, at), in_place(q), none, "a size of");
    says(&cuda::Step::new(usize::MAX, 1, at), in_place(q), none, "a size of");
    says(&step.with_operation(Operation::Shift), in_place(q), none, "OFFSET");
    says(&step.with_operation(Operation::Rerotate), in_place(q), none, "REROTATE");
    says(&step.with_shard(Shard::zigzag(2, 2)), in_place(q), none, "rank");
    let nowhere = cuda::Positions::TokensI64(std::ptr::null());
    says(&cuda::Step::new(1, TOKENS, nowhere), in_place(q), none, "ids");
    let nowhere = cuda::Positions::SeqOffsetsI32(std::ptr::null());
    says(&cuda::Step::new(1, TOKENS, nowhere), in_place(q), none, "offsets");
    let span = q.span();
    says(
        &step,
        Operand::out_of_place(q, Tensor::new(data, DType::Q80, Layout::Bshd, 3)),
        none,
        "q_out",
    );
    memory.is(&host);

    // Nothing to do.
    let empty = of(std::ptr::dangling_mut(), Layout::Bshd, 1);
    for (batch, tokens) in [(0, TOKENS), (1, 0)] {
        let step = cuda::Step::new(batch, tokens, at);
        // SAFETY: there are no elements.
        unsafe { rope.apply_cuda(&step, empty, none) }.unwrap();
    }
    memory.is(&host);

    // Slices are not for this context; and a whole head is a span.
    let step = Step::new(1, TOKENS, Positions::Offset(1));
    let message = refused(rope.apply(&step, ViewMut::bshd(&mut host, 1), ()));
    assert!(message.contains("use apply_cuda"), "{message}");
    let message = refused(rope.apply_thd(&[0; TOKENS], &mut host, 1, &mut [], 0));
    assert!(message.contains("CUDA"), "{message}");
    memory.is(&host);
    let there = cuda::Step::new(1, TOKENS, at).with_stream(gpu.handle());
    // SAFETY: memory of this shape, which is read on the same stream.
    unsafe { rope.apply_cuda(&there, in_place(span), none) }.unwrap();
    config().build().unwrap().apply(&step, ViewMut::bshd(&mut host, 1), ()).unwrap();
    memory.is(&host);
}

#[test]
fn contexts_of_the_cpu_are_refused() {
    let rope = config().build().unwrap();
    let mut q = vec![1.0f32; DIM];
    let tensor = Tensor::new(q.as_mut_ptr().cast(), DType::F32, Layout::Bshd, 1);
    let step = cuda::Step::new(1, 1, cuda::Positions::Offset(1));
    // SAFETY: the call is refused.
    let call = unsafe { rope.apply_cuda(&step, Operand::in_place(tensor), Operand::none()) };
    let message = refused(call);
    assert!(message.contains("lives on cpu") && message.contains("use apply"), "{message}");
    assert!(q.iter().all(|&x| x == 1.0));
}
