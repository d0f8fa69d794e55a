//! Caches whose keys, values and scales share rows of bytes, each in a type of its own. Slices of these types
//! would overlap, so one slice of bytes is borrowed, and the library proves that the parts do not.

use std::marker::PhantomData;
use std::{ptr, slice};

use crate::cache::{self, KvCache};
use crate::element::OutputElement;
use crate::error::{Result, invalid, named};
use crate::scale::{RawScale, Scale};
use crate::strides::{Layout, Strides};
use crate::tensor::Raw;

/// The bytes of elements, for [`KvCache::in_bytes`]: memory of `f32` is aligned to everything that a row may hold.
///
/// ```
/// let mut memory = vec![0f32; 64 * 656 / 4];
/// let bytes = librope::bytes_of(&mut memory);
/// assert_eq!(bytes.len(), 64 * 656);
/// bytes[..4].copy_from_slice(&1.5f32.to_ne_bytes());
/// assert_eq!(memory[0], 1.5);
/// ```
pub fn bytes_of<T: OutputElement>(elements: &mut [T]) -> &mut [u8] {
    let len = size_of_val(elements);
    // SAFETY: the same memory, borrowed as exclusively. Elements are numbers: all of their bytes are set, and
    // any others are numbers as well.
    unsafe { slice::from_raw_parts_mut(elements.as_mut_ptr().cast(), len) }
}

/// Where keys or values, and their scales, lie inside the bytes of [`KvCache::in_bytes`].
#[derive(Debug)]
#[must_use]
pub struct BytePart<'a> {
    raw: Raw, // without memory yet
    size: usize,
    offset: usize,
    scale: Option<(RawScale, Option<usize>)>,
    of: PhantomData<&'a mut [u8]>,
}

impl<'a> BytePart<'a> {
    /// `heads` heads of elements `T` from this byte on, which must be aligned to `T`. Strides count elements.
    pub fn of<T: OutputElement>(offset: usize, heads: usize, strides: Strides) -> Self {
        let raw = Raw::of(ptr::null_mut::<T>(), 0, Layout::Strided(strides), heads);
        BytePart { raw, size: size_of::<T>(), offset, scale: None, of: PhantomData }
    }

    /// Keys are stored as the rotated span alone.
    pub fn span(mut self) -> Self {
        self.raw.span = true;
        self
    }

    /// Sets the scales of codes: one for all, or an array that is not inside the bytes.
    #[allow(clippy::needless_pass_by_value, reason = "an array is borrowed exclusively")]
    pub fn with_scale(mut self, scale: Scale<'a>) -> Self {
        self.scale = Some((scale.raw(), None));
        self
    }

    /// Sets the scales of codes: an array inside the bytes, from this byte on, that is computed, and described by an
    /// empty slice. Those that a call reads, of the source of a move, are computed ones, too.
    #[allow(clippy::needless_pass_by_value, reason = "as with_scale")]
    pub fn with_scale_at(mut self, offset: usize, scale: Scale<'a>) -> Self {
        self.scale = Some((scale.raw(), Some(offset)));
        self
    }

    /// The part of these bytes.
    fn place(self, name: &str, bytes: Bytes) -> Result<(Raw, Option<RawScale>)> {
        let rest = bytes.from(name, self.offset)?;
        let len = rest.len / self.size * self.raw.dtype.channels(); // fewer than bytes, as in Raw::of
        let raw = Raw { data: rest.data.cast(), len, ..self.raw };
        let scale = match self.scale {
            Some((scale, Some(offset))) => {
                let name = format!("the array of scales of {name}");
                let rest = bytes.from(&name, offset)?;
                Some(scale.inside(&name, rest.data, rest.len)?)
            }
            other => other.map(|(scale, _)| scale),
        };
        Ok((raw, scale))
    }
}

/// A slice whose parts overlap for the compiler, and so are pointers.
#[derive(Clone, Copy)]
struct Bytes {
    data: *mut u8,
    len: usize,
}

impl Bytes {
    /// Those from `offset` on.
    fn from(self, name: &str, offset: usize) -> Result<Bytes> {
        match self.len.checked_sub(offset) {
            // The pointer stays inside the slice or at its end.
            Some(len) => Ok(Bytes { data: self.data.wrapping_add(offset), len }),
            None => invalid(format_args!("{name} begins at byte {offset} of {}", self.len)),
        }
    }
}

impl<'a> KvCache<'a> {
    /// Keys, values and scales inside rows of bytes, each of a type of its own. That they do not overlap, and
    /// are aligned, is proved by the library when the cache is used.
    ///
    /// The rows of DeepSeek V3.2, 656 bytes for each token: 512 channels of the latent in E4M3, a scale for
    /// each 128 of them, and the 64 channels that turn, in bf16:
    ///
    /// ```
    /// use librope::half::bf16;
    /// use librope::{BytePart, Config, F8E4M3, KvCache, Pairing, Positions, Scale, Slots, Step, Strides, View};
    ///
    /// let (pages, page_size, row) = (4, 64, 656);
    /// let mut memory = vec![0f32; pages * page_size * row / 4]; // aligned to the scales
    /// let bytes = librope::bytes_of(&mut memory);
    /// let rows = |size| Strides { batch: page_size * row / size, token: row / size, head: 0 };
    /// let scale = Scale::computed(&mut []).with_group(128).with_strides(rows(4)).with_power_of_two();
    /// let latent = BytePart::of::<F8E4M3>(0, 1, rows(1)).with_scale_at(512, scale);
    /// let key = BytePart::of::<bf16>(528, 1, rows(2));
    /// let mut cache = KvCache::in_bytes(pages, page_size, bytes, Some(key), Some(latent))?;
    ///
    /// let rope = Config::new(64, 10000.0, Pairing::Interleaved).build()?;
    /// let (k, v) = (vec![bf16::ONE; 2 * 64], vec![bf16::ONE; 2 * 512]); // of two tokens
    /// let step = Step::new(1, 2, Positions::Offset(7)).with_slots(Slots::mapped(&[70, 3]));
    /// cache = cache.with_v_head_dim(512);
    /// rope.append(&step, (), View::bshd(&k, 1), View::bshd(&v, 1), &mut cache)?;
    /// # Ok::<(), librope::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if a part begins beyond the bytes, or if scales
    /// with a place among them have a slice, or are given.
    pub fn in_bytes(
        pages: usize,
        page_size: usize,
        bytes: &'a mut [u8],
        k: Option<BytePart<'a>>,
        v: Option<BytePart<'a>>,
    ) -> Result<Self> {
        named("KvCache::in_bytes", || {
            let mut cache = KvCache::new(pages, page_size);
            let bytes = Bytes { data: bytes.as_mut_ptr(), len: bytes.len() };
            cache.k = k.map(|part| part.place(cache::K, bytes)).transpose()?;
            cache.v = v.map(|part| part.place(cache::V, bytes)).transpose()?;
            Ok(cache)
        })
    }
}
