//! librope gives the bits of `candle_nn::rotary_emb`, has the gradient that candle lacks, and says no
//! where candle does.

mod common;

use std::sync::Arc;

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_nn::rotary_emb;
use common::{numbers, tables};
use librope::{Angle, Config, Context, LongRope, Operation, Pairing, Scaling};
use librope_candle::{self as ours, Dims, Rope};

type Function = fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>;

const FUNCTIONS: [(&str, Function, Function); 3] = [
    ("rope", rotary_emb::rope, ours::rope),
    ("rope_i", rotary_emb::rope_i, ours::rope_i),
    ("rope_thd", rotary_emb::rope_thd, ours::rope_thd),
];
const SLOW: [(&str, Function, Function); 2] = [
    ("rope_slow", rotary_emb::rope_slow, ours::rope_slow),
    ("rope_i_slow", rotary_emb::rope_i_slow, ours::rope_i_slow),
];

fn bits(x: &Tensor) -> Vec<u32> {
    let x = x.to_dtype(DType::F32).unwrap().flatten_all().unwrap();
    x.to_vec1::<f32>().unwrap().into_iter().map(f32::to_bits).collect()
}

#[test]
fn bits_of_candle() {
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for shape in [[1, 4, 1, 64], [2, 3, 7, 128], [3, 1, 5, 6], [1, 2, 33, 80]] {
            for (name, candle, librope) in FUNCTIONS {
                let tokens = if name == "rope_thd" { shape[1] } else { shape[2] };
                let x = numbers(&shape, dtype).unwrap();
                // A table of just the tokens, and a longer one.
                for length in [tokens, tokens + 9] {
                    let (cos, sin) = tables(length, shape[3], dtype).unwrap();
                    let want = candle(&x, &cos, &sin).unwrap();
                    let got = librope(&x, &cos, &sin).unwrap();
                    assert_eq!(got.shape(), want.shape());
                    assert_eq!(got.dtype(), dtype);
                    assert!(got.is_contiguous());
                    assert_eq!(bits(&got), bits(&want), "{name} {dtype:?} {shape:?} {length}");
                }
                // A table per batch row.
                let (cos, sin) = tables(shape[0] * tokens, shape[3], dtype).unwrap();
                let each = (shape[0], tokens, shape[3] / 2);
                let (cos, sin) = (cos.reshape(each).unwrap(), sin.reshape(each).unwrap());
                let want = candle(&x, &cos, &sin).unwrap();
                let got = librope(&x, &cos, &sin).unwrap();
                let bound = bits(&got).iter().zip(bits(&want)).filter(|(g, w)| **g != *w).count();
                assert_eq!(bound, 0, "{name} {dtype:?} {shape:?} per batch row");
            }
        }
    }
}

#[test]
fn bits_of_candles_slow_functions() {
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for shape in [[1, 4, 1, 64], [2, 3, 7, 128], [3, 1, 5, 6]] {
            for (name, candle, librope) in SLOW {
                let x = numbers(&shape, dtype).unwrap();
                let (cos, sin) = tables(shape[2] + 2, shape[3], dtype).unwrap();
                // rope_i_slow takes no longer table.
                let rows = |table: Tensor| table.narrow(0, 0, shape[2]).unwrap();
                let (cos, sin) = (rows(cos), rows(sin));
                let want = candle(&x, &cos, &sin).unwrap();
                let got = librope(&x, &cos, &sin).unwrap();
                assert_eq!(bits(&got), bits(&want), "{name} {dtype:?} {shape:?}");
            }
        }
    }
}

#[test]
fn strides_that_candle_refuses() {
    let (cos, sin) = tables(5, 64, DType::F32).unwrap();
    let x = numbers(&[2, 5, 3, 64], DType::F32).unwrap();
    let view = x.transpose(1, 2).unwrap();
    assert!(rotary_emb::rope(&view, &cos, &sin).is_err());
    let want = rotary_emb::rope(&view.contiguous().unwrap(), &cos, &sin).unwrap();
    assert_eq!(bits(&ours::rope(&view, &cos, &sin).unwrap()), bits(&want));
    // A slice that begins inside its storage, and one head for all.
    let part = x.narrow(1, 2, 2).unwrap();
    let want = rotary_emb::rope_thd(&part.contiguous().unwrap(), &cos, &sin).unwrap();
    assert_eq!(bits(&ours::rope_thd(&part, &cos, &sin).unwrap()), bits(&want));
    let one = x.narrow(2, 0, 1).unwrap().expand((2, 5, 4, 64)).unwrap();
    let want = rotary_emb::rope_thd(&one.contiguous().unwrap(), &cos, &sin).unwrap();
    assert_eq!(bits(&ours::rope_thd(&one, &cos, &sin).unwrap()), bits(&want));
}

#[test]
fn gradients() {
    let (cos, sin) = tables(7, 16, DType::F32).unwrap();
    let weights = numbers(&[2, 3, 7, 16], DType::F32).unwrap();
    for (_, slow, fast) in SLOW {
        let gradient = |f: Function| {
            let x = Var::from_tensor(&numbers(&[2, 3, 7, 16], DType::F32).unwrap()).unwrap();
            let loss = f(&x, &cos, &sin).unwrap().mul(&weights).unwrap().sum_all().unwrap();
            loss.backward().unwrap().get(&x).unwrap().clone()
        };
        let difference = (gradient(slow) - gradient(fast)).unwrap().abs().unwrap();
        let worst = difference.max_all().unwrap().to_scalar::<f32>().unwrap();
        assert!(worst < 1e-6, "{worst}");
    }

    // By positions, with tables and without: the same rotation, the same gradient.
    let context = Arc::new(Config::new(16, 10000.0, Pairing::Halves).build().unwrap());
    let x = Var::from_tensor(&numbers(&[2, 3, 7, 16], DType::F32).unwrap()).unwrap();
    let ids: Vec<i64> = (0..7).collect();
    let twice: Vec<i64> = ids.iter().chain(&ids).copied().collect();
    let by_rows = ours::rope(&x, &cos, &sin).unwrap();
    for rope in [
        Rope::at_offset(&context, Dims::Bhsd, 0),
        Rope::at_tokens(&context, Dims::Bhsd, ids),
        Rope::at_batch_tokens(&context, Dims::Bhsd, twice),
    ] {
        let y = rope.apply(&x).unwrap();
        let difference = (&y - &by_rows).unwrap().abs().unwrap().max_all().unwrap();
        assert!(difference.to_scalar::<f32>().unwrap() < 2e-6);
        let loss = y.mul(&weights).unwrap().sum_all().unwrap();
        let got = loss.backward().unwrap().get(&x).unwrap().clone();
        let want = rope.with_operation(Operation::Backward).apply(&weights).unwrap();
        assert_eq!(bits(&got), bits(&want));
    }
    let undone = Rope::at_offset(&context, Dims::Bhsd, 0).with_operation(Operation::Inverse);
    assert!(undone.apply(&x).unwrap().sum_all().unwrap().backward().is_err());
}

/// They would get no gradient, or half of one: an error of the backward pass, and of no other call.
#[test]
fn tables_have_no_gradient() {
    let (x, (cos, sin)) =
        (numbers(&[2, 3, 7, 16], DType::F32).unwrap(), tables(9, 16, DType::F32).unwrap());
    let tracked = |x: &Tensor| Var::from_tensor(x).unwrap().affine(1.0, 0.0).unwrap();
    let thd = x.transpose(1, 2).unwrap();
    for (name, _, librope) in FUNCTIONS.into_iter().chain(SLOW) {
        let x = if name == "rope_thd" { &thd } else { &x };
        for x in [x.clone(), tracked(x)] {
            for (cos, sin, which) in [
                (&tracked(&cos), &sin, "cos"),
                (&cos, &tracked(&sin), "sin"),
                (Var::from_tensor(&cos).unwrap().as_tensor(), &sin, "cos"),
            ] {
                let got = librope(&x, &cos.detach(), &sin.detach()).unwrap();
                assert_eq!(got.track_op(), x.track_op());
                let refused = librope(&x, cos, sin).unwrap();
                assert_eq!(bits(&refused), bits(&got));
                let error = refused.sum_all().unwrap().backward().unwrap_err().to_string();
                assert!(error.contains(&format!("use {which}.detach()")), "{error}");
            }
        }
    }
}

/// candle reads the rows of a table per batch row as if it had just those of the call.
#[test]
fn longer_tables_per_batch_row() {
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for (name, candle, librope) in FUNCTIONS {
            let (batch, tokens) = (3, 4);
            let shape =
                if name == "rope_thd" { [batch, tokens, 2, 16] } else { [batch, 2, tokens, 16] };
            let x = numbers(&shape, dtype).unwrap();
            let (cos, sin) = tables(batch * (tokens + 5), 16, dtype).unwrap();
            let each = |table: Tensor| table.reshape((batch, tokens + 5, 8)).unwrap();
            let (cos, sin) = (each(cos), each(sin));
            let got = librope(&x, &cos, &sin).unwrap();
            for b in 0..batch {
                let row = |x: &Tensor| x.narrow(0, b, 1).unwrap().contiguous().unwrap();
                let want = candle(&row(&x), &row(&cos), &row(&sin)).unwrap();
                assert_eq!(bits(&row(&got)), bits(&want), "{name} {dtype:?} batch row {b}");
            }
        }
    }
}

/// What packed sequences, several axes and several sets come to, one sequence or axis at a time.
#[test]
fn positions_of_every_kind() {
    let config = || Config::new(16, 10000.0, Pairing::Halves);
    let context = Arc::new(config().build().unwrap());
    let x = numbers(&[1, 3, 7, 16], DType::F32).unwrap();
    let part = |from, len| x.narrow(2, from, len).unwrap();
    let at = |context: &Arc<Context>, offset, x: &Tensor| {
        bits(&Rope::at_offset(context, Dims::Bhsd, offset).apply(x).unwrap())
    };
    let piece =
        |y: &Tensor, from, len| bits(&y.narrow(2, from, len).unwrap().contiguous().unwrap());

    let packed = Rope::at_seq_offsets(&context, Dims::Bhsd, vec![100, 5]);
    let packed = packed.with_cu_seqlens(vec![0, 3, 7]);
    let y = packed.apply(&x).unwrap();
    assert_eq!(piece(&y, 0, 3), at(&context, 100, &part(0, 3)));
    assert_eq!(piece(&y, 3, 4), at(&context, 5, &part(3, 4)));
    // Shifted by one distance, keys are those of the positions that they come to.
    let exact = Arc::new(config().with_angle(Angle::Exact).build().unwrap());
    let keys = Rope::at_offset(&exact, Dims::Bhsd, 100).apply(&x).unwrap();
    let shift = Rope::at_same(&exact, Dims::Bhsd, -60).with_operation(Operation::Shift);
    let want = Rope::at_offset(&exact, Dims::Bhsd, 40).apply(&x).unwrap();
    let off = shift.apply(&keys).unwrap().sub(&want).unwrap().abs().unwrap();
    assert!(off.max_all().unwrap().to_scalar::<f32>().unwrap() < 1e-5);
    let offset = Rope::at_offset(&exact, Dims::Bhsd, -60).with_operation(Operation::Shift);
    assert!(offset.apply(&keys).unwrap_err().to_string().contains("Positions::Same"));

    // Its gradient keeps the sequences.
    let var = Var::from_tensor(&x).unwrap();
    let loss = packed.apply(&var).unwrap().mul(&x).unwrap().sum_all().unwrap();
    let got = loss.backward().unwrap().get(&var).unwrap().clone();
    let want = packed.with_operation(Operation::Backward).apply(&x).unwrap();
    assert_eq!(bits(&got), bits(&want));

    // Two axes with the same ids are one.
    let two = Arc::new(config().with_mrope(&[4, 4], false).build().unwrap());
    let ids: Vec<i64> = (50..57).chain(50..57).collect();
    let y = Rope::at_axes_batch_tokens(&two, Dims::Bhsd, ids).apply(&x).unwrap();
    assert_eq!(bits(&y), at(&context, 50, &x));

    let long = |seq_len| {
        let long = LongRope::new([1.0; 8], [4.0; 8], 64).with_factor(4.0).with_seq_len(seq_len);
        config().with_scaling(Scaling::LongRope(long))
    };
    let sets = Arc::new(Context::with_sets(&[long(1), long(65)]).unwrap());
    let y = Rope::at_seq_offsets(&sets, Dims::Bhsd, vec![10, 1000])
        .with_cu_seqlens(vec![0, 3, 7])
        .with_freq_sets(vec![0, 1])
        .apply(&x)
        .unwrap();
    let [short, long] = [1, 65].map(|seq_len| Arc::new(long(seq_len).build().unwrap()));
    assert_eq!(piece(&y, 0, 3), at(&short, 10, &part(0, 3)));
    assert_eq!(piece(&y, 3, 4), at(&long, 1000, &part(3, 4)));
}

#[test]
fn mistakes() {
    let (cos, sin) = tables(5, 64, DType::F32).unwrap();
    let x = numbers(&[1, 2, 6, 64], DType::F32).unwrap();
    for (name, candle, librope) in FUNCTIONS {
        let short = if name == "rope_thd" { x.transpose(1, 2).unwrap() } else { x.clone() };
        let cases = [
            (short, cos.clone(), sin.clone()), // 6 tokens, 5 rows
            (x.narrow(3, 0, 32).unwrap().contiguous().unwrap(), cos.clone(), sin.clone()),
            (x.reshape((2, 6, 64)).unwrap(), cos.clone(), sin.clone()),
            (
                x.to_dtype(DType::BF16).unwrap().narrow(2, 0, 2).unwrap().contiguous().unwrap(),
                cos.clone(),
                sin.clone(),
            ),
            (
                x.to_dtype(DType::U32).unwrap().narrow(2, 0, 2).unwrap().contiguous().unwrap(),
                cos.clone(),
                sin.clone(),
            ),
            (
                x.clone(),
                cos.unsqueeze(0).unwrap().repeat((3, 2, 1)).unwrap(),
                sin.unsqueeze(0).unwrap().repeat((3, 2, 1)).unwrap(),
            ),
        ];
        for (i, (x, cos, sin)) in cases.into_iter().enumerate() {
            assert!(candle(&x, &cos, &sin).is_err(), "{name} {i}");
            assert!(librope(&x, &cos, &sin).is_err(), "{name} {i}");
        }
    }
    // The rule is that they are the same.
    let half = x.to_dtype(DType::BF16).unwrap().narrow(2, 0, 2).unwrap().contiguous().unwrap();
    let error = librope_candle::rope(&half, &cos, &sin).unwrap_err().to_string();
    let want = "xs (BF16), cos (F32) and sin (F32) must have one dtype";
    assert!(error.contains(want), "{error}");
    let context = Arc::new(Config::new(64, 10000.0, Pairing::Halves).build().unwrap());
    let rope = Rope::at_offset(&context, Dims::Bhsd, 0);
    let narrow = Tensor::zeros((1, 2, 3, 32), DType::F32, &Device::Cpu).unwrap();
    assert!(rope.apply(&narrow).unwrap_err().to_string().contains("head_dim is 64"));
    let ids = Rope::at_tokens(&context, Dims::Bhsd, vec![1, 2]);
    assert!(ids.apply(&x).unwrap_err().to_string().contains("2 entries"));
}

#[test]
fn other_dtypes_are_refused_by_name() {
    let context = Arc::new(Config::new(64, 10000.0, Pairing::Halves).build().unwrap());
    let rope = Rope::at_offset(&context, Dims::Bhsd, 0);
    for dtype in [DType::F64, DType::U8, DType::U32, DType::I64, DType::F8E4M3] {
        let x = Tensor::zeros((1, 2, 3, 64), dtype, &Device::Cpu).unwrap();
        let table = Tensor::zeros((3, 32), dtype, &Device::Cpu).unwrap();
        let want = format!("takes f32, f16 and bf16, not {}", dtype.as_str());
        for result in [rope.apply(&x), librope_candle::rope_thd(&x, &table, &table)] {
            let error = result.unwrap_err().to_string();
            assert!(error.contains(&want), "{error}");
        }
    }
}
