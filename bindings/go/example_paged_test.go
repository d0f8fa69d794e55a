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

// projected stands for a projection: numbers that depend on sequence, place, and what they are for.
func projected(sequence, place, what, heads int) []float32 {
	x := make([]float32, heads*dim)
	for i := range x {
		x[i] = float32(math.Sin(float64(100*sequence+3*place+what) + 0.37*float64(i)))
	}
	return x
}

// A small engine: sequences of different lengths decode together, in pages that are allotted as they grow.
// Each step norms q and k as Qwen3 does, turns them, and stores k and v, in one call; attention then reads the
// pages. The result is that of contiguous caches.
func Example_pagedDecode() {
	ctx, err := rope.New(rope.Config{HeadDim: dim, Theta: 10000, Pairing: rope.PairingHalves})
	if err != nil {
		log.Fatal(err)
	}
	defer ctx.Close()
	cache := rope.KVCache[float32, float32]{Pages: pages, PageSize: pageSize}
	cache.K = rope.NHD(make([]float32, pages*pageSize*row), heads)
	cache.V = rope.NHD(make([]float32, pages*pageSize*row), heads)
	norm := func(seed int) *rope.Norm { // of this layer
		weight := rope.WeightsOf(projected(9, seed, 0, 1))
		return &rope.Norm{Kind: rope.NormKindRMS, Eps: 1e-6, Weight: weight}
	}
	norms := rope.Norms{Q: norm(0), K: norm(1)}
	var free, table []int32
	for page := range int32(pages) {
		free = append(free, page)
	}
	prompts := []int{5, 1, 9}
	table = slices.Repeat([]int32{-1}, len(prompts)*width)
	lengths := make([]int32, len(prompts))                       // of each sequence, before the step
	plainK, plainV := make([][]float32, 3), make([][]float32, 3) // the same in contiguous caches
	worst := 0.0
	for s := range 8 {
		// The prompts first, packed; then a token of each sequence.
		counts := []int{1, 1, 1}
		if s == 0 {
			counts = prompts
		}
		var q, k, v []float32
		ends := []int32{0}
		for i, count := range counts {
			start := int(lengths[i])
			for place := start; place < start+count; place++ {
				q = append(q, projected(i, place, 0, qHeads)...)
				k = append(k, projected(i, place, 1, heads)...)
				v = append(v, projected(i, place, 2, heads)...)
			}
			ends = append(ends, ends[i]+int32(count))
			for entry := (start + pageSize - 1) / pageSize; entry*pageSize < start+count; entry++ {
				at := entry % 2 * (len(free) - 1) // from both ends in turns, so that they are not adjacent
				table[i*width+entry] = free[at]
				free = slices.Delete(free, at, at+1)
			}
		}
		step := rope.Step{Batch: 1, Tokens: int(ends[3]), Positions: rope.SeqOffsets(lengths), CuSeqlens: ends}
		turned := rope.BSHD(slices.Clone(k), heads)
		step.Norms = &rope.Norms{K: norms.K}
		if err := rope.ApplyQK(ctx, rope.Tensor[float32]{}, turned, step); err != nil {
			log.Fatal(err)
		}

		// The engine's own call, for each layer: this one has one.
		step.Norms, step.Slots = &norms, rope.PagedSlots(table, width, lengths)
		err := rope.Append(ctx, rope.BSHD(q, qHeads), rope.BSHD(k, heads), rope.BSHD(v, heads), cache, step)
		if err != nil {
			log.Fatal(err)
		}

		for i, count := range counts {
			first, end := int(ends[i]), int(ends[i+1])
			plainK[i] = append(plainK[i], turned.Data[first*row:end*row]...)
			plainV[i] = append(plainV[i], v[first*row:end*row]...)
			lengths[i] += int32(count)
			var slots, all []int
			for n := range int(lengths[i]) {
				slots = append(slots, int(table[i*width+n/pageSize])*pageSize+n%pageSize)
				all = append(all, n)
			}
			last := q[(end-1)*qHeads*dim : end*qHeads*dim]
			paged, contiguous := attend(last, cache.K.Data, cache.V.Data, slots), attend(last, plainK[i], plainV[i], all)
			for c := range paged {
				worst = max(worst, math.Abs(float64(paged[c]-contiguous[c])))
			}
		}
	}
	fmt.Println(lengths, "tokens in", pages-len(free), "pages, off by", worst)
	// Output: [12 8 16] tokens in 9 pages, off by 0
}
