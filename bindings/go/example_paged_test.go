package rope_test

import (
	"fmt"
	"log"
	"math"
	"slices"

	rope "github.com/librope/librope/bindings/go"
)

const (
	dim, qHeads, heads = 64, 4, 2 // heads of k and v
	row                = heads * dim
	pageSize, pages    = 4, 16
	width              = 6 // the most pages of a sequence
	layers             = 3
)

// attend is attention of one token's q over the k and v of slots, in their order.
func attend(q, keys, values []float32, slots []int) []float32 {
	out, scores := make([]float32, len(q)), make([]float64, len(slots))
	for h := range qHeads {
		head := h / (qHeads / heads) * dim
		for i, slot := range slots {
			scores[i] = 0
			for c := range dim {
				scores[i] += float64(q[h*dim+c]) * float64(keys[slot*row+head+c]) / 8
			}
		}
		most, sum := slices.Max(scores), 0.0
		for i := range scores {
			scores[i] = math.Exp(scores[i] - most)
			sum += scores[i]
		}
		for i, slot := range slots {
			for c := range dim {
				out[h*dim+c] += float32(scores[i]/sum) * values[slot*row+head+c]
			}
		}
	}
	return out
}

// projected stands for a projection: numbers that depend on layer, sequence, place, and what they are for.
func projected(layer, sequence, place, what, heads int) []float32 {
	x := make([]float32, heads*dim)
	for i := range x {
		x[i] = float32(math.Sin(float64(1000*layer+100*sequence+3*place+what) + 0.37*float64(i)))
	}
	return x
}

// decoderLayer has the pages of a layer, and the same in contiguous caches, which the result is checked with.
type decoderLayer struct {
	keys, values   []float32
	plainK, plainV [3][]float32
}

// A small engine: sequences of different lengths decode together, in pages that are allotted as they grow.
// Each step is prepared once; every layer then turns q and stores k and v in one call, and attention reads
// the pages. The result is that of contiguous caches.
func Example_pagedDecode() {
	ctx, err := rope.New(rope.Config{HeadDim: dim, Theta: 10000, Pairing: rope.PairingHalves})
	if err != nil {
		log.Fatal(err)
	}
	defer ctx.Close()
	// What all layers have in common: descriptions without slices.
	cache := rope.KVCache[float32, float32]{Pages: pages, PageSize: pageSize}
	cache.K, cache.V = rope.NHD[float32](nil, heads), rope.NHD[float32](nil, heads)
	ofQ, ofKV := rope.BSHD[float32](nil, qHeads), rope.BSHD[float32](nil, heads)
	model := make([]decoderLayer, layers)
	for i := range model {
		model[i].keys, model[i].values = make([]float32, pages*pageSize*row), make([]float32, pages*pageSize*row)
	}
	var free, table []int32
	for page := range int32(pages) {
		free = append(free, page)
	}
	prompts := []int{5, 1, 9}
	table = slices.Repeat([]int32{-1}, len(prompts)*width)
	lengths := make([]int32, len(prompts)) // of each sequence, before the step
	worst := 0.0
	for s := range 8 {
		// The prompts first, packed; then a token of each sequence.
		counts := []int{1, 1, 1}
		if s == 0 {
			counts = prompts
		}
		ends := []int32{0}
		for i, count := range counts {
			start := int(lengths[i])
			ends = append(ends, ends[i]+int32(count))
			for entry := (start + pageSize - 1) / pageSize; entry*pageSize < start+count; entry++ {
				at := entry % 2 * (len(free) - 1) // from both ends in turns, so that they are not adjacent
				table[i*width+entry] = free[at]
				free = slices.Delete(free, at, at+1)
			}
		}
		step := rope.Step{Batch: 1, Tokens: int(ends[3]), Positions: rope.SeqOffsets(lengths), CuSeqlens: ends}
		step.Slots = rope.PagedSlots(table, width, lengths)
		call, err := rope.PrepareAppend(ctx, ofQ, ofKV, ofKV, cache, step)
		if err != nil {
			log.Fatal(err)
		}
		for n := range model {
			layer := &model[n]
			var q, k, v []float32
			for i, count := range counts {
				for place := int(lengths[i]); place < int(lengths[i])+count; place++ {
					q = append(q, projected(n, i, place, 0, qHeads)...)
					k = append(k, projected(n, i, place, 1, heads)...)
					v = append(v, projected(n, i, place, 2, heads)...)
				}
			}

			// The engine's own call, for each layer.
			if err := call.Apply(q, k, v, layer.keys, layer.values); err != nil {
				log.Fatal(err)
			}

			worst = max(worst, layer.check(ctx, q, k, v, step, table))
		}
		call.Close()
		for i, count := range counts {
			lengths[i] += int32(count)
		}
	}
	fmt.Println(lengths, "tokens in", pages-len(free), "pages of", layers, "layers, off by", worst)
	// Output: [12 8 16] tokens in 9 pages of 3 layers, off by 0
}

// check attends with the last token of each sequence to the pages, and to contiguous caches that ApplyQK has
// filled, and tells how far apart the results are.
func (layer *decoderLayer) check(ctx *rope.Context, q, k, v []float32, step rope.Step, table []int32) (worst float64) {
	ends := step.CuSeqlens
	step.Slots = nil
	turned := rope.BSHD(slices.Clone(k), heads)
	if err := rope.ApplyQK(ctx, rope.Tensor[float32]{}, turned, step); err != nil {
		log.Fatal(err)
	}
	for i := range layer.plainK {
		first, end := int(ends[i]), int(ends[i+1])
		layer.plainK[i] = append(layer.plainK[i], turned.Data[first*row:end*row]...)
		layer.plainV[i] = append(layer.plainV[i], v[first*row:end*row]...)
		var slots, all []int
		for n := range len(layer.plainK[i]) / row {
			slots = append(slots, int(table[i*width+n/pageSize])*pageSize+n%pageSize)
			all = append(all, n)
		}
		last := q[(end-1)*qHeads*dim : end*qHeads*dim]
		paged, contiguous := attend(last, layer.keys, layer.values, slots), attend(last, layer.plainK[i], layer.plainV[i], all)
		for c := range paged {
			worst = max(worst, math.Abs(float64(paged[c]-contiguous[c])))
		}
	}
	return worst
}
