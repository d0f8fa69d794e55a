package rope

// #include "shim.h"
import "C"

import (
	"math"
	"unsafe"

	"github.com/librope/librope/bindings/go/internal/extent"
)

// PromptPart is text, then at most one image or video, as a prompt of a multimodal model holds them.
type PromptPart struct {
	Text      int64 // tokens of text
	T, H, W   int32 // grid of visual tokens, after merging; T = 0: none
	TInterval int32 // ids from one frame to the next; 0: 1
}

// maxPromptTokens is ten times the longest context of 2025: ids of 3 GiB.
const maxPromptTokens = 1 << 27

// PromptIDs returns the ids of a multimodal prompt (get_rope_index of Qwen-VL and relatives), beginning
// at start: ids[3, tokens] for AxesBatchTokenIDs, and the id of the token after them, where decoding
// continues. Prompts of more than 2^27 tokens, and those that memory does not hold, are an
// ErrOutOfMemory.
func PromptIDs(parts []PromptPart, start int64) (ids []int64, next int64, err error) {
	return promptIDs("PromptIDs", parts, nil, start)
}

// PromptIDsTimed is PromptIDs for videos whose frames are not a whole number of ids apart (Qwen2.5-VL:
// tokens_per_second * second_per_grid_t): tIntervals has that number of every part, or 0 where its TInterval
// counts. Each frame's id is rounded down, as transformers does in float32.
func PromptIDsTimed(parts []PromptPart, tIntervals []float64, start int64) (ids []int64, next int64, err error) {
	if len(tIntervals) != len(parts) {
		return nil, 0, invalid("PromptIDsTimed", "tIntervals has %d numbers, and must have one for each of %d parts",
			len(tIntervals), len(parts))
	}
	return promptIDs("PromptIDsTimed", parts, tIntervals, start)
}

func promptIDs(function string, parts []PromptPart, tIntervals []float64, start int64) (
	ids []int64, next int64, err error,
) {
	if err := compatible(); err != nil {
		return nil, 0, err
	}
	if len(parts) > math.MaxInt32 {
		return nil, 0, invalid(function, "the number of parts (%d) must not be beyond %d", len(parts),
			math.MaxInt32)
	}
	tokens := uint64(0)
	for i, r := range parts {
		visual, fits := extent.Product(int(max(0, r.T)), int(max(0, r.H)), int(max(0, r.W)))
		tokens += uint64(max(0, r.Text))
		if !fits || visual > maxPromptTokens || tokens > maxPromptTokens || tokens+visual > maxPromptTokens {
			return nil, 0, outOfMemory(function, "parts[%d] (%d of text, %d x %d x %d) makes more than %d "+
				"tokens", i, r.Text, r.T, r.H, r.W, maxPromptTokens)
		}
		tokens += visual
	}
	// Where Go finds no memory, the process ends. C says so: twice as much, because Go takes more than
	// the slice.
	bytes := tokens * 3 * 8
	if bytes > math.MaxInt/2 || tokens > 1<<20 && C.ropego_has_memory(C.size_t(2*bytes)) == 0 {
		return nil, 0, outOfMemory(function, "%d tokens need %d bytes", tokens, bytes)
	}
	flat := make([]int64, 0, 5*len(parts))
	for _, r := range parts {
		flat = append(flat, r.Text, int64(r.T), int64(r.H), int64(r.W), int64(r.TInterval))
	}
	ids = make([]int64, 3*tokens)
	out := (*C.int64_t)(unsafe.SliceData(ids))
	if out == nil {
		out = new(C.int64_t)
	}
	var last C.int64_t
	err = check(function, C.ropego_prompt_ids((*C.int64_t)(unsafe.SliceData(flat)),
		(*C.double)(unsafe.SliceData(tIntervals)), C.int32_t(len(parts)), C.int64_t(start), out, C.int64_t(tokens),
		&last))
	if err != nil {
		return nil, 0, err
	}
	return ids, int64(last), nil
}
