//! Tables of cos and sin as candle makes them, and numbers.

use candle_core::{DType, Device, Result, Tensor};

/// cos and sin `[tokens, channels / 2]` as candle's models make them.
pub fn tables(tokens: usize, channels: usize, dtype: DType) -> Result<(Tensor, Tensor)> {
    let inv_freq: Vec<f32> =
        (0..channels / 2).map(|i| 1.0 / 10000f32.powf(2.0 * i as f32 / channels as f32)).collect();
    let inv_freq = Tensor::new(inv_freq, &Device::Cpu)?.reshape((1, channels / 2))?;
    let positions: Vec<f32> = (0..tokens).map(|t| t as f32).collect();
    let positions = Tensor::new(positions, &Device::Cpu)?.reshape((tokens, 1))?;
    let angles = positions.matmul(&inv_freq)?;
    Ok((angles.cos()?.to_dtype(dtype)?, angles.sin()?.to_dtype(dtype)?))
}

/// Numbers between -1 and 1, the same on every run.
pub fn numbers(shape: &[usize], dtype: DType) -> Result<Tensor> {
    let count = shape.iter().product::<usize>();
    let values: Vec<f32> = (0..count)
        .map(|i| (i as u32).wrapping_mul(2654435761) as f32 / 2f32.powi(31) - 1.0)
        .collect();
    Tensor::from_vec(values, shape, &Device::Cpu)?.to_dtype(dtype)
}
