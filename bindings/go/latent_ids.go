package rope

// #include "shim.h"
import "C"

import (
	"math"
	"unsafe"
)

// LatentGrid is one image or video of a diffusion model, in tokens: what is left of its latents after
// patching (or packing).
type LatentGrid struct {
	T, H, W int32 // frames (1 for an image), rows, columns
}

// Latents are the tokens of a diffusion transformer.
type Latents struct {
	Grids []LatentGrid // that which is made, then those that it is made from
	Text  int64        // tokens of text in the attention with the latents
	FPS   float64      // frames per second of a video. Cosmos: 0: an image; LTX-Video, LTX-2: needed
	// Kandinsky 5: ids are divided by it; 0: 1. LTX-Video: pixels of a latent; 0: 8, 32, 32.
	ScaleT, ScaleH, ScaleW float64
}

// maxLatentTokens is far beyond any attention: ids of 4 GiB.
const maxLatentTokens = 1 << 27

// LatentIDs returns the ids that the pipeline of diffusers gives to these tokens, for layers of a kind:
// ids[axes, tokens] for AxesBatchTokenIDs, with the axes of its Config, in the order of the model's
// attention. More than 2^27 tokens, and what memory does not hold, are an ErrOutOfMemory.
func (m *Model) LatentIDs(kind int, latents Latents) ([]float32, error) {
	const function = "LatentIDs"
	numbers := narrow{function: function}
	number := numbers.int32("kind", kind)
	count := numbers.int32("len(latents.Grids)", len(latents.Grids))
	if numbers.err != nil {
		return nil, numbers.err
	}
	use, open := m.ref().enter()
	if !open {
		return nil, closed(function, "the Model m")
	}
	defer use.leave()
	config, err := use.body.value.config(kind)
	if err != nil {
		return nil, err
	}
	flat := make([]C.int32_t, 0, 3*len(latents.Grids)+1) // never empty: C gets an address
	for _, g := range latents.Grids {
		flat = append(flat, C.int32_t(g.T), C.int32_t(g.H), C.int32_t(g.W))
	}
	scales := [4]C.double{C.double(latents.FPS), C.double(latents.ScaleT), C.double(latents.ScaleH),
		C.double(latents.ScaleW)}
	var tokens C.int64_t
	call := func(ids *C.float, capacity C.int64_t) error {
		return check(function, C.ropego_model_latent_ids(use.body.value.ptr, number, unsafe.SliceData(flat), count,
			C.int64_t(latents.Text), &scales[0], ids, capacity, &tokens))
	}
	if err := call(nil, 0); err != nil {
		return nil, err
	}
	axes := uint64(max(1, config.Axes))
	bytes := uint64(tokens) * axes * 4
	tooMany := tokens > maxLatentTokens || bytes > math.MaxInt/2
	if tooMany || tokens > 1<<20 && C.ropego_has_memory(C.size_t(2*bytes)) == 0 {
		return nil, outOfMemory(function, "%d tokens need %d bytes", int64(tokens), bytes)
	}
	ids := make([]float32, uint64(tokens)*axes)
	if len(ids) == 0 {
		return ids, nil
	}
	return ids, call((*C.float)(unsafe.SliceData(ids)), C.int64_t(len(ids)))
}
