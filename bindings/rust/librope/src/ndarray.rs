//! Views of ndarray arrays, with any strides that are not negative and channels adjacent.

use ndarray::{ArrayView3, ArrayView4, ArrayViewMut3, ArrayViewMut4};

use crate::element::Element;
use crate::error::{Result, invalid, named};
use crate::strides::{Layout, Strides};
use crate::tensor::{Raw, View, ViewMut};

/// Axes of the array that are batch, token and head; `None` is a batch of 1. Channels come last.
type Axes = (Option<usize>, usize, usize);

const THD: Axes = (None, 0, 1);
const BSHD: Axes = (Some(0), 1, 2);
const BHSD: Axes = (Some(0), 2, 1);

fn raw<T: Element>(data: *mut T, shape: &[usize], strides: &[isize], axes: Axes) -> Result<Raw> {
    let (batch, token, head) = axes;
    let last = shape.len() - 1;
    let channels = shape[last];
    // The strides of an array without elements mean nothing (ndarray's are 0), nor do those of a
    // dimension of one entry.
    let empty = shape.contains(&0);
    let stride = |axis: usize| match usize::try_from(strides[axis]) {
        _ if empty || shape[axis] < 2 => Ok(0),
        Ok(stride) => Ok(stride),
        Err(_) => invalid(format_args!("axis {axis} has stride {}", strides[axis])),
    };
    if !empty && channels > 1 && strides[last] != 1 {
        return invalid(format_args!(
            "channels are {} elements apart, and must be adjacent",
            strides[last]
        ));
    }
    let (batches, batch_stride) = match batch {
        Some(first) => (shape[first], stride(first)?),
        None => (1, 0),
    };
    let strides = Strides { batch: batch_stride, token: stride(token)?, head: stride(head)? };
    let (tokens, heads) = (shape[token], shape[head]);
    // An array lies inside one allocation, so this does not overflow.
    let len = if empty { Some(0) } else { strides.reach([batches, tokens, heads], channels) };
    Ok(Raw {
        data: data.cast(),
        len: len.unwrap_or(0),
        dtype: T::DTYPE,
        layout: Layout::Strided(strides),
        heads,
        span: false,
        shape: Some([batches, tokens, channels]),
    })
}

macro_rules! constructors {
    ($view:ident, $array3:ident, $array4:ident, $pointer:ident, $($mutable:tt)?) => {
        impl<'a, T: Element> $view<'a, T> {
            /// An ndarray view `[tokens, heads, channels]`, with batch 1. Needs feature `ndarray`.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if channels are not adjacent
            /// or a stride is negative.
            pub fn from_thd($($mutable)? array: $array3<'a, T>) -> Result<Self> {
        named(concat!(stringify!($view), "::from_thd"), || {
                let data = array.$pointer().cast_mut();
                let raw = raw(data, array.shape(), array.strides(), THD)?;
                Ok(Self::of(raw))
            })
    }

            /// An ndarray view `[batch, tokens, heads, channels]`. Needs feature `ndarray`.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if channels are not adjacent
            /// or a stride is negative.
            pub fn from_bshd($($mutable)? array: $array4<'a, T>) -> Result<Self> {
        named(concat!(stringify!($view), "::from_bshd"), || {
                let data = array.$pointer().cast_mut();
                let raw = raw(data, array.shape(), array.strides(), BSHD)?;
                Ok(Self::of(raw))
            })
    }

            /// An ndarray view `[batch, heads, tokens, channels]`. Needs feature `ndarray`.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if channels are not adjacent
            /// or a stride is negative.
            pub fn from_bhsd($($mutable)? array: $array4<'a, T>) -> Result<Self> {
        named(concat!(stringify!($view), "::from_bhsd"), || {
                let data = array.$pointer().cast_mut();
                let raw = raw(data, array.shape(), array.strides(), BHSD)?;
                Ok(Self::of(raw))
            })
    }
        }
    };
}

trait Pointer<T> {
    fn pointer(&self) -> *const T;
}

macro_rules! pointers {
    ($($array:ident)*) => {$(
        impl<T> Pointer<T> for $array<'_, T> {
            fn pointer(&self) -> *const T {
                self.as_ptr()
            }
        }
    )*};
}
pointers!(ArrayView3 ArrayView4);

trait PointerMut<T> {
    fn pointer_mut(&mut self) -> *const T;
}

macro_rules! pointers_mut {
    ($($array:ident)*) => {$(
        impl<T> PointerMut<T> for $array<'_, T> {
            fn pointer_mut(&mut self) -> *const T {
                self.as_mut_ptr()
            }
        }
    )*};
}
pointers_mut!(ArrayViewMut3 ArrayViewMut4);

constructors!(View, ArrayView3, ArrayView4, pointer,);
constructors!(ViewMut, ArrayViewMut3, ArrayViewMut4, pointer_mut, mut);

#[cfg(test)]
mod tests {
    use ndarray::{Array3, Array4, s};

    use crate::{Config, Context, Pairing, Positions, Step, View, ViewMut};

    fn rope() -> Context {
        Config::new(8, 10000.0, Pairing::Halves).build().expect("a plain configuration")
    }

    fn numbers(n: usize) -> Vec<f32> {
        (0..n).map(|i| f32::from((i * 37 % 101) as u8) / 50.0 - 1.0).collect()
    }

    #[test]
    fn views_of_one_buffer_turn_like_separate_slices() {
        // [tokens, q heads + k heads + v heads, channels]
        let mut qkv = Array3::from_shape_vec((5, 7, 8), numbers(5 * 7 * 8)).expect("its size");
        let want = qkv.clone();
        let ids = [3i64, 1, 4, 1, 5];
        let step = Step::new(1, 5, Positions::tokens(&ids));
        {
            let (q, k) = qkv.multi_slice_mut((s![.., 0..4, ..], s![.., 4..6, ..]));
            let (q, k) = (ViewMut::from_thd(q).unwrap(), ViewMut::from_thd(k).unwrap());
            rope().apply(&step, q, k).unwrap();
        }
        for (heads, slice) in [(4, s![.., 0..4, ..]), (2, s![.., 4..6, ..])] {
            let mut part: Vec<f32> = want.slice(slice).iter().copied().collect();
            rope().apply_thd(&ids, &mut part, heads, &mut [], 0).unwrap();
            assert_eq!(qkv.slice(slice).iter().copied().collect::<Vec<_>>(), part);
        }
        assert_eq!(qkv.slice(s![.., 6.., ..]), want.slice(s![.., 6.., ..]));
    }

    #[test]
    fn transposed_arrays_are_read_with_their_strides() {
        let memory = Array4::from_shape_vec((2, 5, 3, 8), numbers(240)).expect("its size");
        let step = Step::new(2, 5, Positions::Offset(9));
        let mut want = Array4::<f32>::zeros((2, 5, 3, 8));
        let mut got = Array4::<f32>::zeros((2, 3, 5, 8));
        let (x, y) = (View::from_bshd(memory.view()), ViewMut::from_bshd(want.view_mut()));
        rope().apply(&step, (x.unwrap(), y.unwrap()), ()).unwrap();
        let x = View::from_bhsd(memory.view().permuted_axes([0, 2, 1, 3])).unwrap();
        rope().apply(&step, (x, ViewMut::from_bhsd(got.view_mut()).unwrap()), ()).unwrap();
        assert_eq!(got, want.permuted_axes([0, 2, 1, 3]));
    }

    #[test]
    fn arrays_without_elements_are_no_work() {
        for [batch, tokens] in [[0, 3], [2, 0], [0, 0]] {
            let step = Step::new(batch, tokens, Positions::Offset(0));
            let mut e = Array4::<f32>::ones((batch, tokens, 3, 8));
            let x = e.clone();
            rope().apply(&step, ViewMut::from_bshd(e.view_mut()).unwrap(), ()).unwrap();
            let pair = (View::from_bshd(x.view()), ViewMut::from_bshd(e.view_mut()));
            rope().apply(&step, (pair.0.unwrap(), pair.1.unwrap()), ()).unwrap();
            let mut e = Array4::<f32>::ones((batch, 3, tokens, 8));
            rope().apply(&step, ViewMut::from_bhsd(e.view_mut()).unwrap(), ()).unwrap();
        }
        let mut e = Array3::<f32>::ones((0, 3, 8));
        let step = Step::new(1, 0, Positions::Offset(0));
        rope().apply(&step, ViewMut::from_thd(e.view_mut()).unwrap(), ()).unwrap();
        // No heads: as with slices.
        let mut e = Array3::<f32>::ones((4, 0, 8));
        let step = Step::new(1, 4, Positions::Offset(0));
        let error = rope().apply(&step, ViewMut::from_thd(e.view_mut()).unwrap(), ()).unwrap_err();
        let slice = rope().apply(&step, ViewMut::<f32>::bshd(&mut [], 0), ()).unwrap_err();
        assert_eq!(error, slice);
        // A shape is a shape, also of nothing.
        let mut e = Array3::<f32>::ones((0, 3, 6));
        let step = Step::new(1, 0, Positions::Offset(0));
        let error = rope().apply(&step, ViewMut::from_thd(e.view_mut()).unwrap(), ()).unwrap_err();
        assert!(error.message().contains("6 channels"), "{error}");
    }

    #[test]
    fn other_shapes_and_strides_are_refused() {
        let mut x = Array3::<f32>::zeros((5, 4, 8));
        let reversed = View::from_thd(x.slice(s![..;-1, .., ..]));
        assert!(reversed.unwrap_err().message().contains("stride -32"));
        let apart = View::from_thd(x.slice(s![.., .., ..;2]));
        assert!(apart.unwrap_err().message().contains("must be adjacent"));
        let view = ViewMut::from_thd(x.view_mut()).unwrap();
        let error = rope().apply(&Step::new(1, 4, Positions::Offset(0)), view, ()).unwrap_err();
        assert!(error.message().contains("5 tokens"), "{error}");
    }
}
