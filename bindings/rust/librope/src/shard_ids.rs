use librope_sys as sys;

use crate::error::{Error, Result, check, invalid, named, require_library};
use crate::positions::Positions;
use crate::size::{length, product};
use crate::step::{Angles, Step};

/// Where the tokens of a step are: the position of each, `[batch, tokens]`, and its number,
/// `[tokens]`, among the tokens of all ranks.
///
/// ```
/// use librope::{Positions, Shard, Step, shard_ids};
///
/// let step = Step::new(1, 4, Positions::Offset(100)).with_shard(Shard::zigzag(1, 2));
/// assert_eq!(shard_ids(&step)?, (vec![102, 103, 104, 105], vec![2, 3, 4, 5]));
/// # Ok::<(), librope::Error>(())
/// ```
///
/// # Errors
/// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for other positions than [`Positions::Offset`](crate::Positions::Offset)
/// and [`Positions::SeqOffsets`](crate::Positions::SeqOffsets), and if the lengths do not divide;
/// [`Error::OutOfMemory`].
pub fn shard_ids(step: &Step<'_>) -> Result<(Vec<i64>, Vec<i64>)> {
    named("shard_ids", || {
        require_library()?;
        let Angles::Positions(positions) = &step.angles else {
            return invalid(format_args!("shard_ids needs positions"));
        };
        let (batch, tokens) = (length(step.batch)?, length(step.tokens)?);
        // SAFETY: integers and pointers: zeros are valid.
        let mut raw: sys::rope_positions = unsafe { std::mem::zeroed() };
        let counts = [step.position_rows(), step.tokens, 1];
        positions.check(counts, step.cu_seqlens, step.freq_sets, &mut raw)?;
        raw.batch_repeat = length(step.batch_repeat)?;
        if let Some(shard) = &step.shard {
            raw.shard = shard.as_raw()?;
        }
        let Some(all) = product([step.batch, step.tokens]) else {
            return invalid(format_args!("the ids of the step are beyond the address space"));
        };
        let (mut ids, mut numbers) = (zero_ids(all)?, zero_ids(step.tokens)?);
        // SAFETY: the arrays have as many entries as the library writes.
        check(unsafe {
            sys::rope_shard_ids(
                batch,
                tokens,
                &raw const raw,
                ids.as_mut_ptr(),
                numbers.as_mut_ptr(),
            )
        })?;
        Ok((ids, numbers))
    })
}

/// Where the sequences of all ranks begin and end among the tokens of this one: these are in the order of the
/// whole, so each sequence has one run of them.
pub(crate) fn own_cu_seqlens(step: &Step<'_>, cu_seqlens: &[i32]) -> Result<Vec<i32>> {
    let (_, numbers) =
        shard_ids(&Step { angles: Angles::Positions(Positions::Offset(0)), ..*step })?;
    let before = |&end: &i32| numbers.partition_point(|&n| n < i64::from(end)) as i32; // at most `end`
    Ok(cu_seqlens.iter().map(before).collect())
}

/// As many zeros as ids are to be written, or an error where memory does not hold them.
pub(crate) fn zero_ids<T: Clone + Default>(length: usize) -> Result<Vec<T>> {
    let mut ids = Vec::new();
    if ids.try_reserve_exact(length).is_err() {
        return Err(Error::OutOfMemory(format!("librope: no memory for {length} ids")));
    }
    ids.resize(length, T::default());
    Ok(ids)
}
