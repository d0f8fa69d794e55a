package rope

// #include "shim.h"
import "C"

import (
	"math"
	"unsafe"

	"github.com/librope/librope/bindings/go/internal/extent"
)

// Positions says where the positions of tokens come from. Kinds without axes use one id for all axes
// (text).
type Positions struct {
	kind                                 int32
	typ                                  int32 // as ropego_positions.type
	ids                                  unsafe.Pointer
	len                                  int
	offset                               int64
	strideAxis, strideBatch, strideToken int
}

// Offset puts token i of every sequence at offset + i.
func Offset(offset int64) Positions {
	return Positions{kind: C.ROPE_POSITIONS_OFFSET, offset: offset}
}

// SeqOffsets puts token i of sequence s at offsets[s] + i: what is cached before this step. Sequences
// are the batch rows, or the runs that Step.CuSeqlens cuts.
func SeqOffsets[I int32 | int64](offsets []I) Positions {
	return positionsOf(C.ROPE_POSITIONS_SEQ_OFFSETS, offsets)
}

// Same puts every token at one position. With OperationShift it is the distance that all of them move.
func Same(position int64) Positions {
	return Positions{kind: C.ROPE_POSITIONS_IDS_STRIDED, typ: oneID, offset: position}
}

// oneID as Positions.typ: the only id is in offset.
const oneID = 1

// TokenIDs is ids[tokens], the same for all batch rows.
func TokenIDs[I int32 | int64 | float32](ids []I) Positions {
	return positionsOf(C.ROPE_POSITIONS_IDS_T, ids)
}

// BatchTokenIDs is ids[batch, tokens]: position_ids.
func BatchTokenIDs[I int32 | int64 | float32](ids []I) Positions {
	return positionsOf(C.ROPE_POSITIONS_IDS_BT, ids)
}

// AxesBatchTokenIDs is ids[axes, batch, tokens]: position_ids of mrope.
func AxesBatchTokenIDs[I int32 | int64 | float32](ids []I) Positions {
	return positionsOf(C.ROPE_POSITIONS_IDS_ABT, ids)
}

// BatchTokenAxesIDs is ids[batch, tokens, axes]: coordinates of patches.
func BatchTokenAxesIDs[I int32 | int64 | float32](ids []I) Positions {
	return positionsOf(C.ROPE_POSITIONS_IDS_BTA, ids)
}

// StridedIDs has strides of its own; 0 repeats.
func StridedIDs[I int32 | int64 | float32](ids []I, axis, batch, token int) Positions {
	p := positionsOf(C.ROPE_POSITIONS_IDS_STRIDED, ids)
	p.strideAxis, p.strideBatch, p.strideToken = axis, batch, token
	return p
}

func positionsOf[I int32 | int64 | float32](kind int32, ids []I) Positions {
	var zero I
	typ := int32(unsafe.Sizeof(zero))
	if _, float := any(zero).(float32); float {
		typ = -typ
	}
	p := Positions{kind: kind, typ: typ, ids: unsafe.Pointer(unsafe.SliceData(ids)), len: len(ids)}
	if p.ids == nil {
		p.ids = unsafe.Pointer(&nothing) // an empty array is not a missing one
	}
	return p
}

// nothing stands for the memory of empty slices, which have none.
var nothing [2]uint64

// positionNames are those of positions in messages.
type positionNames struct{ required, ids, freqSets string }

var (
	stepNames = positionNames{"Step.Positions or Step.CosSin is required", "positions", "FreqSets"}
	// Of the positions before a move, which calls see as those of a step of their own.
	fromNames = positionNames{"Step.From must be Offset, TokenIDs or another kind of positions", "Step.From",
		"Step.FromFreqSets"}
)

// check fills the sequences and positions of the call after checking that every id lies inside its
// slice.
func (step *Step) check(function string, call *C.ropego_call, c *contextState) error {
	return step.checkAs(function, &stepNames, call, c)
}

func (step *Step) checkAs(function string, names *positionNames, call *C.ropego_call, c *contextState) error {
	call.batch, call.tokens = C.int64_t(step.Batch), C.int64_t(step.Tokens)
	call.operation = C.int32_t(step.Operation)
	p := &step.Positions
	call.positions.kind = C.int32_t(p.kind)
	call.positions._type = C.int32_t(p.typ)
	call.positions.offset = C.int64_t(p.offset)
	call.positions.shard = step.Shard.raw
	call.positions.batch_repeat = C.int64_t(step.BatchRepeat)
	if step.CosSin != nil && step.BatchRepeat != 0 {
		return invalid(function, "Step.BatchRepeat (%d) must be 0 with Step.CosSin: it is of positions", step.BatchRepeat)
	}
	if step.Shard.wrong != 0 {
		return invalid(function, "Step.Shard: %s", shardFaults[step.Shard.wrong])
	}
	if step.FromFreqSets != nil && step.From == nil {
		return invalid(function, "Step.FromFreqSets must be nil without Step.From")
	}
	if p.kind == 0 && step.CosSin == nil {
		return invalid(function, "%s", names.required)
	}
	if step.Operation == OperationShift && p.movesOn() {
		return invalid(function, "Step.Positions must not be Offset or SeqOffsets with OperationShift, which would move "+
			"token i by offset + i: Same moves all tokens by one distance, TokenIDs each by its own")
	}
	if (p.typ == 0 || p.typ == oneID) && step.CuSeqlens == nil && step.FreqSets == nil {
		return nil
	}
	return step.checkArrays(function, names, call, c)
}

// positionRows are the batch rows that positions have. A number that does not divide is refused by the library.
func (step *Step) positionRows() int {
	if step.BatchRepeat > 1 {
		return step.Batch / step.BatchRepeat
	}
	return step.Batch
}

// movesOn tells whether each token is one further than the one before it.
func (p *Positions) movesOn() bool {
	return p.kind == C.ROPE_POSITIONS_OFFSET || p.kind == C.ROPE_POSITIONS_SEQ_OFFSETS
}

func (step *Step) checkArrays(function string, names *positionNames, call *C.ropego_call, c *contextState) error {
	p := &step.Positions
	batch, tokens := max(0, step.positionRows()), max(0, step.Tokens)
	sequences := batch
	if step.CuSeqlens != nil {
		sequences = len(step.CuSeqlens) - 1
		if sequences < 1 || sequences > math.MaxInt32 {
			return invalid(function, "CuSeqlens (%d entries) must have one entry more than there are "+
				"sequences, of which there is at least one", len(step.CuSeqlens))
		}
		call.positions.sequences = C.int32_t(sequences)
	}
	if step.FreqSets != nil && len(step.FreqSets) != sequences {
		return invalid(function, "%s (%d entries) must have one for each of %d sequences", names.freqSets,
			len(step.FreqSets), sequences)
	}
	if p.typ == 0 || p.typ == oneID {
		return nil
	}
	good := false // of a kind that is not known here
	switch p.kind {
	case C.ROPE_POSITIONS_SEQ_OFFSETS:
		good = p.len == sequences
	case C.ROPE_POSITIONS_IDS_T:
		good = p.len == tokens
	case C.ROPE_POSITIONS_IDS_BT:
		good = extent.Fills(p.len, batch, tokens, 1)
	case C.ROPE_POSITIONS_IDS_ABT, C.ROPE_POSITIONS_IDS_BTA:
		good = extent.Fills(p.len, batch, tokens, c.info.Axes)
	case C.ROPE_POSITIONS_IDS_STRIDED:
		call.positions.stride_axis = C.int64_t(p.strideAxis)
		call.positions.stride_batch = C.int64_t(p.strideBatch)
		call.positions.stride_token = C.int64_t(p.strideToken)
		good = batch == 0 || tokens == 0 || extent.Reaches(p.len, 1,
			[3]uint64{uint64(c.info.Axes), uint64(batch), uint64(tokens)},
			[3]int{p.strideAxis, p.strideBatch, p.strideToken})
	}
	if !good {
		return invalid(function, "%s (%d entries) must fit batch %d, tokens %d, axes %d and %d "+
			"sequences", names.ids, p.len, step.Batch, step.Tokens, c.info.Axes, sequences)
	}
	return nil
}
