package rope

// #include "shim.h"
import "C"

import (
	"math"
	"slices"
	"unsafe"
)

// Shard says which tokens of the sequences this process has, when several ranks share them (context
// parallelism). Tensors and Step.Tokens are then those of this rank, and offsets, CuSeqlens and FreqSets
// those of whole sequences, the same on every rank. What the ranks compute, put together, has the bits
// that one process computes. The zero value: the tokens are all here.
type Shard struct {
	raw   C.rope_shard
	wrong uint8 // which of shardFaults, which no call can do
}

var shardFaults = [...]string{"",
	"Then: there are two groups of ranks at most",
	"Then: inner divides a row, and must not be PerDocument",
	"rank, world and block must be below 2^31",
	"it begins with ContiguousShard or another scheme",
}

// ContiguousShard is one piece: Ulysses before its all-to-all, plain ring attention.
func ContiguousShard(rank, world int) Shard { return shardOf(C.ROPE_SHARD_CONTIGUOUS, rank, world, 0) }

// ZigzagShard is the chunks rank and 2*world-1-rank of 2*world: Megatron-LM, TransformerEngine, PyTorch's
// head-tail load balancer, MaxText.
func ZigzagShard(rank, world int) Shard { return shardOf(C.ROPE_SHARD_ZIGZAG, rank, world, 0) }

// StripedShard gives each rank in turn a stripe of block tokens; 1 is striped attention.
func StripedShard(rank, world, block int) Shard {
	return shardOf(C.ROPE_SHARD_STRIPED, rank, world, block)
}

// HeadsShard is all tokens, and heads of its own: Ulysses behind its all-to-all. It changes no position.
func HeadsShard(rank, world int) Shard { return shardOf(C.ROPE_SHARD_HEADS, rank, world, 0) }

// PerDocument divides each document of CuSeqlens by itself; their lengths must divide.
func (s Shard) PerDocument() Shard {
	if s.raw.scheme == 0 {
		s.wrong = 4
	}
	s.raw.per_document = 1
	return s
}

// Then has a second group of ranks divide what a rank of this one has, by its own scheme: ring attention
// and Ulysses are ZigzagShard(ringRank, ring).Then(ContiguousShard(rank, ulysses)). Calls refuse a third group,
// and an inner that is PerDocument.
func (s Shard) Then(inner Shard) Shard {
	switch {
	case s.wrong == 0 && inner.wrong != 0:
		s.wrong = inner.wrong
	case s.raw.scheme == 0 || inner.raw.scheme == 0:
		s.wrong = 4
	case s.raw.inner_scheme != 0 || inner.raw.inner_scheme != 0:
		s.wrong = 1
	case inner.raw.per_document != 0:
		s.wrong = 2
	}
	s.raw.inner_scheme, s.raw.inner_block = inner.raw.scheme, inner.raw.block
	s.raw.inner_rank, s.raw.inner_world = inner.raw.rank, inner.raw.world
	return s
}

func shardOf(scheme int32, rank, world, block int) Shard {
	s := Shard{raw: C.rope_shard{scheme: C.int32_t(scheme), rank: C.int32_t(rank), world: C.int32_t(world),
		block: C.int32_t(block)}}
	if int(s.raw.rank) != rank || int(s.raw.world) != world || int(s.raw.block) != block {
		s.wrong = 3
	}
	return s
}

// ShardIDs tells where the tokens of a step are: the position of each, [batch, tokens], and its number,
// [tokens], among the tokens of all ranks. For Offset and SeqOffsets. Ids that memory does not hold are an
// ErrOutOfMemory.
func ShardIDs(step Step) (ids, numbers []int64, err error) { return shardIDs("ShardIDs", step) }

func shardIDs(function string, step Step) (ids, numbers []int64, err error) {
	if err := compatible(); err != nil {
		return nil, nil, err
	}
	if step.CosSin != nil {
		return nil, nil, invalid(function, "Step.CosSin must be nil: ids come from positions")
	}
	if step.Batch < 0 || step.Tokens < 0 || step.Batch >= math.MaxInt/64 || step.Tokens > math.MaxInt/64/(step.Batch+1) {
		return nil, nil, invalid(function, "Batch (%d) and Tokens (%d) must not be negative, and their ids must "+
			"fit into memory", step.Batch, step.Tokens)
	}
	step.Operation = OperationForward // of the step, positions count
	var call C.ropego_call
	if err := step.check(function, &call, &contextState{info: Info{Axes: 1}}); err != nil {
		return nil, nil, err
	}
	// Where Go finds no memory, the process ends.
	if bytes := (step.Batch + 1) * step.Tokens * 8; bytes > 1<<23 && C.ropego_has_memory(C.size_t(2*bytes)) == 0 {
		return nil, nil, outOfMemory(function, "%d x %d ids need %d bytes", step.Batch, step.Tokens, bytes)
	}
	ids, numbers = make([]int64, step.Batch*step.Tokens), make([]int64, step.Tokens)
	raw := C.ropego_shard_ids(&call, (*C.uint8_t)(step.Positions.ids),
		(*C.int32_t)(unsafe.SliceData(step.CuSeqlens)), (*C.int64_t)(unsafe.SliceData(ids)),
		(*C.int64_t)(unsafe.SliceData(numbers)))
	if err := check(function, raw); err != nil {
		return nil, nil, err
	}
	return ids, numbers, nil
}

// ownCuSeqlens is where the sequences of all ranks begin and end among the tokens of this one: these are in
// the order of the whole, so each sequence has one run of them.
func (step *Step) ownCuSeqlens(function string) ([]int32, error) {
	here := *step
	here.Positions = Offset(0) // only which tokens are here counts
	_, numbers, err := shardIDs(function, here)
	if err != nil {
		return nil, err
	}
	own := make([]int32, len(step.CuSeqlens))
	for i, end := range step.CuSeqlens {
		before, _ := slices.BinarySearch(numbers, int64(end))
		own[i] = int32(before)
	}
	return own, nil
}
