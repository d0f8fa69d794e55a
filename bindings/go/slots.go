package rope

// #include "shim.h"
import "C"

import (
	"math"
	"unsafe"

	"github.com/librope/librope/bindings/go/internal/extent"
)

// Slots says how the slot of each token in a KVCache is found. It is the same for all layers of a step,
// so it belongs to the Step.
//
// The sequences are those of the positions: the batch rows, or the runs that Step.CuSeqlens cuts; token i
// of one is counted from 0 in this call. starts are the slots of each sequence that were filled before,
// whatever the position ids are.
//
// A slot or page that does not exist is an error, and nothing is written then; a negative one means
// nowhere: the token is stored in no slot, and written to outputs like any other. If two tokens have the
// same slot, its contents are unspecified, and nothing else is.
type Slots struct {
	kind       int32
	bytes      int32          // of a slot number
	numbers    unsafe.Pointer // slots, or pages
	len        int
	width      int // of rows of a page table; 0: pageStarts has them
	pageStarts []int32
	starts     []int32
}

// MappedSlots has a number for each token, [batch, tokens]: slot_mapping. Slot page * PageSize + n is slot
// n of a page. Numbers behind those of all tokens are left; fewer are an error: padding has -1.
func MappedSlots[I int32 | int64](slots []I) *Slots {
	var zero I
	return &Slots{kind: C.ROPE_SLOTS_MAPPED, bytes: int32(unsafe.Sizeof(zero)), numbers: addressOf(slots),
		len: len(slots)}
}

// PagedSlots has page tables [sequences, width]: token i of sequence s goes to index n = starts[s] + i of
// the pages that row s lists, to slot n % PageSize of the page in entry n / PageSize. Only entries that a
// token needs are read.
func PagedSlots(table []int32, width int, starts []int32) *Slots {
	return &Slots{kind: C.ROPE_SLOTS_PAGED, numbers: addressOf(table), len: len(table), width: width,
		starts: starts}
}

// RaggedSlots is PagedSlots with rows of different lengths: row s are the entries pageStarts[s] to
// pageStarts[s+1]-1 of the table.
func RaggedSlots(table, pageStarts, starts []int32) *Slots {
	return &Slots{kind: C.ROPE_SLOTS_PAGED, numbers: addressOf(table), len: len(table),
		pageStarts: pageStarts, starts: starts}
}

// LinearSlots gives page s to sequence s: token i goes to its slot starts[s] + i.
func LinearSlots(starts []int32) *Slots {
	return &Slots{kind: C.ROPE_SLOTS_LINEAR, starts: starts}
}

// addressOf is that of a slice; an empty one is not a missing one.
func addressOf[T any](slice []T) unsafe.Pointer {
	if len(slice) == 0 {
		return unsafe.Pointer(&nothing)
	}
	return unsafe.Pointer(unsafe.SliceData(slice))
}

// sequences are those of the positions.
func (step *Step) sequences() int {
	if step.CuSeqlens != nil {
		return len(step.CuSeqlens) - 1
	}
	return max(0, step.Batch)
}

// check fills the C cache after checking that every number lies inside its slice.
func (s *Slots) check(function, name string, raw *C.ropego_cache, step *Step) error {
	raw.kind = C.int32_t(s.kind)
	raw.slot_bytes = C.int32_t(s.bytes)
	if s.kind == C.ROPE_SLOTS_MAPPED {
		// The library takes missing numbers for padding, and would lose the tokens.
		if tokens, ok := extent.Product(step.Batch, step.Tokens); !ok || tokens > uint64(s.len) {
			return invalid(function, "%s has %s, and must have one for each of %d * %d tokens; padding has -1", name,
				count(s.len, "slot", "slots"), step.Batch, step.Tokens)
		}
		raw.slots_length = C.int64_t(s.len)
		return nil
	}
	sequences := step.sequences()
	if s.kind == C.ROPE_SLOTS_PAGED {
		if err := s.checkTable(function, name, raw, sequences); err != nil {
			return err
		}
	}
	if len(s.starts) != sequences {
		return invalid(function, "%s has %s, and must have one for each of %s", name,
			count(len(s.starts), "start", "starts"), count(sequences, "sequence", "sequences"))
	}
	return nil
}

func (s *Slots) checkTable(function, name string, raw *C.ropego_cache, sequences int) error {
	if s.pageStarts == nil {
		if s.width <= 0 || !extent.Fills(s.len, sequences, s.width, 1) {
			return invalid(function, "%s has a page table of %d entries and width %d, and must have %d "+
				"rows of a positive width, which fill it", name, s.len, s.width, sequences)
		}
		raw.page_table_stride = C.int64_t(s.width)
		return nil
	}
	if len(s.pageStarts)-1 != sequences || s.len > math.MaxInt32 {
		return invalid(function, "%s has %d pageStarts and %d pages, and must have one pageStart more "+
			"than there are sequences (%d), and pages that an int32 can count", name, len(s.pageStarts), s.len, sequences)
	}
	// The library looks at a row before it looks at the next one's ends.
	for i, at := range s.pageStarts {
		if at < 0 || int(at) > s.len {
			return invalid(function, "%s: pageStarts[%d] (%d) must be from 0 to the number of pages (%d)",
				name, i, at, s.len)
		}
	}
	return nil
}
