//! A decode step on a GPU, inside a CUDA graph: captured once, replayed for every token. Memory, stream and graph
//! are those of cudarc. Lengths of the sequences lie on the device, where each replay reads the current ones. The
//! program compares all bits with those of a CPU, and without a GPU says why it ends.

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, DevicePtr, DevicePtrMut};
use librope::cuda::{self, Operand, Tensor};
use librope::half::{bf16, slice::HalfFloatSliceExt};
use librope::{Config, DType, Device, Error, Layout, Pairing, Positions, Step, ViewMut};

const SEQUENCES: usize = 8;
const Q_HEADS: usize = 32;
const K_HEADS: usize = 8;
const DIM: usize = 128;

/// Stands for a projection.
fn numbers(heads: usize) -> Vec<bf16> {
    (0..SEQUENCES * heads * DIM).map(|i| bf16::from_f32((0.7 * i as f32).sin())).collect()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let config = Config::new(DIM, 500_000.0, Pairing::Halves);
    let on_cpu = config.build()?;
    let rope = match config.with_device(Device::Cuda(0)).build() {
        Err(Error::Unavailable(reason)) => {
            println!("{reason}");
            return Ok(());
        }
        rope => rope?,
    };
    println!("{} on {}", librope::VERSION, rope.backend());

    let gpu = CudaContext::new(0)?;
    // SAFETY: all work is on one stream, and in its order. A graph takes no events from outside.
    unsafe { gpu.disable_event_tracking() };
    let stream = gpu.new_stream()?;
    let mut q = stream.alloc_zeros::<u16>(SEQUENCES * Q_HEADS * DIM)?; // the bits of bf16
    let mut k = stream.alloc_zeros::<u16>(SEQUENCES * K_HEADS * DIM)?;
    let mut lengths = stream.alloc_zeros::<i32>(SEQUENCES)?;

    // Positions::Offset would be captured with its value.
    let at = cuda::Positions::SeqOffsetsI32(lengths.device_ptr(&stream).0 as *const i32);
    let step = cuda::Step::new(SEQUENCES, 1, at).with_stream(stream.cu_stream().cast());
    let tensor = |data, heads| Tensor::new(data as *mut _, DType::Bf16, Layout::Bshd, heads);
    let turned_q = Operand::in_place(tensor(q.device_ptr_mut(&stream).0, Q_HEADS));
    let turned_k = Operand::in_place(tensor(k.device_ptr_mut(&stream).0, K_HEADS));

    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    // SAFETY: memory of these shapes, on the device of the context, that outlives the graph.
    let captured = unsafe { rope.apply_cuda(&step, turned_q, turned_k) };
    let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let graph = stream.end_capture(flags)?;
    captured?;
    let graph = graph.ok_or("nothing was captured")?;
    drop(rope); // the graph holds the frequencies

    for token in 0..3 {
        let now = [0, 5, 77, 1000, 4096, 32_767, 65_536, 131_071].map(|length| length + token);
        let (mut new_q, mut new_k) = (numbers(Q_HEADS), numbers(K_HEADS));
        stream.memcpy_htod(&now, &mut lengths)?;
        stream.memcpy_htod(new_q.reinterpret_cast(), &mut q)?;
        stream.memcpy_htod(new_k.reinterpret_cast(), &mut k)?;
        graph.launch()?;
        let (got_q, got_k) = (stream.clone_dtoh(&q)?, stream.clone_dtoh(&k)?);
        stream.synchronize()?;

        let step = Step::new(SEQUENCES, 1, Positions::seq_offsets(&now));
        on_cpu.apply(
            &step,
            ViewMut::bshd(&mut new_q, Q_HEADS),
            ViewMut::bshd(&mut new_k, K_HEADS),
        )?;
        assert!(got_q == new_q.reinterpret_cast(), "q differs from the CPU's");
        assert!(got_k == new_k.reinterpret_cast(), "k differs from the CPU's");
    }
    println!("3 replays for {SEQUENCES} sequences: the bits of {}", on_cpu.backend());
    Ok(())
}
