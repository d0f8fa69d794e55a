//! candle's rotary embeddings behind `peer.h`. Halves by `rope_thd`, which takes [batch, token, head,
//! dim]; interleaved pairs by `rope_i`, which knows only [batch, head, token, dim], so there q and k
//! lie in that order. candle owns its tensors and returns new ones: out of place only.
//! cos and sin are in the type of the tensor, and so is its arithmetic.
use candle_core::{DType, Device, Result, Tensor};
use candle_nn::rotary_emb::{rope_i, rope_thd};
use std::ffi::{c_char, c_void};
use std::slice::{from_raw_parts, from_raw_parts_mut};

#[repr(C)]
pub struct Case {
    dtype: i32,
    pairing: i32,
    threads: i32,
    q_heads: i32,
    k_heads: i32,
    head_dim: i32,
    tokens: i64,
    positions: *const i64,
    q: *mut c_void,
    k: *mut c_void,
    q_out: *mut c_void,
    k_out: *mut c_void,
    cos: *const f32,
    sin: *const f32,
    table_cos: *const f32,
    table_sin: *const f32,
    table_rows: i64,
    theta: f64,
}

struct Part {
    x: Tensor,
    y: Option<Tensor>,
    out: *mut c_void,
}

struct Prepared {
    halves: bool,
    cos: Tensor,
    sin: Tensor,
    parts: [Part; 2],
}

fn dtype(case: &Case) -> DType {
    [DType::F32, DType::F16, DType::BF16][case.dtype as usize - 1]
}

fn read(case: &Case, data: *const c_void, heads: i32) -> Result<Tensor> {
    let shape = (1, case.tokens as usize, heads as usize, case.head_dim as usize);
    let count = shape.1 * shape.2 * shape.3;
    // Sound: peer.h says that q and k have these sizes, and every bit pattern is a number.
    let tensor = unsafe {
        match dtype(case) {
            DType::F32 => {
                Tensor::from_slice(from_raw_parts(data as *const f32, count), shape, &Device::Cpu)
            }
            DType::F16 => Tensor::from_slice(
                from_raw_parts(data as *const half::f16, count),
                shape,
                &Device::Cpu,
            ),
            _ => Tensor::from_slice(
                from_raw_parts(data as *const half::bf16, count),
                shape,
                &Device::Cpu,
            ),
        }
    }?;
    if case.pairing == 1 {
        Ok(tensor)
    } else {
        tensor.transpose(1, 2)?.contiguous()
    }
}

fn rows(case: &Case, data: *const f32) -> Result<Tensor> {
    let shape = (case.tokens as usize, case.head_dim as usize / 2);
    let values = unsafe { from_raw_parts(data, shape.0 * shape.1) };
    Tensor::from_slice(values, shape, &Device::Cpu)?.to_dtype(dtype(case))
}

fn prepare(case: &Case) -> Result<Prepared> {
    let part =
        |x, heads, out| -> Result<Part> { Ok(Part { x: read(case, x, heads)?, y: None, out }) };
    Ok(Prepared {
        halves: case.pairing == 1,
        cos: rows(case, case.cos)?,
        sin: rows(case, case.sin)?,
        parts: [part(case.q, case.q_heads, case.q_out)?, part(case.k, case.k_heads, case.k_out)?],
    })
}

fn export(prepared: &Prepared) -> Result<()> {
    for part in &prepared.parts {
        let Some(y) = &part.y else { continue };
        let y = if prepared.halves { y.clone() } else { y.transpose(1, 2)?.contiguous()? };
        let y = y.flatten_all()?;
        unsafe {
            match y.dtype() {
                DType::F32 => from_raw_parts_mut(part.out as *mut f32, y.elem_count())
                    .copy_from_slice(&y.to_vec1()?),
                DType::F16 => from_raw_parts_mut(part.out as *mut half::f16, y.elem_count())
                    .copy_from_slice(&y.to_vec1()?),
                _ => from_raw_parts_mut(part.out as *mut half::bf16, y.elem_count())
                    .copy_from_slice(&y.to_vec1()?),
            }
        }
    }
    Ok(())
}

#[no_mangle]
pub extern "C" fn peer_contenders() -> *const c_char {
    c"candle".as_ptr()
}

/// # Safety
/// As `peer.h` says.
#[no_mangle]
pub unsafe extern "C" fn peer_prepare(
    _contender: *const c_char,
    case: *const Case,
    why: *mut c_char,
    why_size: usize,
) -> *mut c_void {
    let case = &*case;
    let refuse = |reason: &str| {
        let length = reason.len().min(why_size - 1);
        std::ptr::copy_nonoverlapping(reason.as_ptr(), why as *mut u8, length);
        *why.add(length) = 0;
        std::ptr::null_mut()
    };
    if case.q == case.q_out {
        return refuse("returns new tensors");
    }
    match prepare(case) {
        Ok(prepared) => Box::into_raw(Box::new(prepared)) as *mut c_void,
        Err(error) => refuse(&error.to_string()),
    }
}

/// # Safety
/// As `peer.h` says.
#[no_mangle]
pub unsafe extern "C" fn peer_run(prepared: *mut c_void) {
    let prepared = &mut *(prepared as *mut Prepared);
    for part in &mut prepared.parts {
        part.y = None; // its memory serves the next one
        let rotate = if prepared.halves { rope_thd } else { rope_i };
        part.y =
            Some(rotate(&part.x, &prepared.cos, &prepared.sin).expect("checked by the first run"));
    }
}

/// # Safety
/// As `peer.h` says.
#[no_mangle]
pub unsafe extern "C" fn peer_export(prepared: *mut c_void) {
    export(&*(prepared as *const Prepared)).expect("a contiguous tensor of this dtype");
}

/// # Safety
/// As `peer.h` says.
#[no_mangle]
pub unsafe extern "C" fn peer_release(prepared: *mut c_void) {
    drop(Box::from_raw(prepared as *mut Prepared));
}
