package rope_test

import (
	"fmt"
	"log"
	"math"
	"slices"

	rope "github.com/librope/librope/bindings/go"
)

// Keys of a long conversation, which are in a paged cache, move, and nothing is computed again. A page is cut out: the
// keys behind it shift down by as many positions, in their slots. Then the conversation grows beyond what its model was
// trained for: they turn to the frequencies of YaRN, where they are. They are compared with keys that are rotated anew.
func Example_moveCache() {
	// OperationShift adds angles, and these are exact sums under AngleExact alone.
	trained := rope.Config{HeadDim: dim, Theta: 10000, Pairing: rope.PairingHalves, Angle: rope.AngleExact}
	longer := trained
	longer.Scaling, longer.Factor, longer.OriginalMaxPositionEmbeddings = rope.ScalingYarn, 4, 32768
	ctx, err := rope.NewSets([]rope.Config{trained, longer})
	if err != nil {
		log.Fatal(err)
	}
	defer ctx.Close()
	const first, tokens, cut = 30000, 10, pageSize // the first position, and how many tokens leave
	var k, v []float32
	for place := range tokens {
		k, v = append(k, projected(0, 0, place, 1, heads)...), append(v, projected(0, 0, place, 2, heads)...)
	}
	cache := rope.KVCache[float32, float32]{Pages: pages, PageSize: pageSize}
	cache.K = rope.NHD(make([]float32, pages*pageSize*row), heads)
	cache.V = rope.NHD(make([]float32, pages*pageSize*row), heads)
	table, start := []int32{5, 2, 7}, []int32{0}
	old, yarn := []int32{0}, []int32{1} // sets of frequencies

	// The last tokens of the conversation so far.
	step := rope.Step{Batch: 1, Tokens: tokens, Positions: rope.Offset(first), FreqSets: old,
		Slots: rope.PagedSlots(table, 3, start)}
	err = rope.Append(ctx, rope.Tensor[float32]{}, rope.BSHD(k, heads), rope.BSHD(v, heads), cache, step)
	if err != nil {
		log.Fatal(err)
	}
	kept := rope.Step{Batch: 1, Tokens: tokens - cut, Positions: rope.Offset(first), FreqSets: old}
	// off is how far the keys that were kept are from those that are rotated from the first position on.
	off := func(sets []int32) (worst float64) {
		want, step := slices.Clone(k[cut*row:]), kept
		step.FreqSets = sets
		if err := rope.ApplyQK(ctx, rope.Tensor[float32]{}, rope.BSHD(want, heads), step); err != nil {
			log.Fatal(err)
		}
		for n := range tokens - cut {
			slot := int(table[1+n/pageSize])*pageSize + n%pageSize
			for i, key := range cache.K.Data[slot*row:][:row] {
				worst = max(worst, math.Abs(float64(key-want[n*row+i])))
			}
			if !slices.Equal(cache.V.Data[slot*row:][:row], v[(cut+n)*row:][:row]) {
				worst = math.Inf(1)
			}
		}
		return worst
	}

	// Page 5 is free again; all that is behind it moves by one distance.
	step = kept
	step.Operation, step.Positions, step.Slots = rope.OperationShift, rope.Same(-cut), rope.PagedSlots(table[1:], 2, start)
	if err := rope.MoveSlots(ctx, cache, step); err != nil {
		log.Fatal(err)
	}
	fmt.Println("shifted:", off(old) < 2e-6, off(yarn) < 2e-6)

	// Positions stay, and frequencies change; so would positions, if others were given.
	from := kept.Positions
	step.Operation, step.Positions, step.From = rope.OperationRerotate, kept.Positions, &from
	step.FreqSets, step.FromFreqSets = yarn, old
	if err := rope.MoveSlots(ctx, cache, step); err != nil {
		log.Fatal(err)
	}
	fmt.Println("with other frequencies:", off(old) < 2e-6, off(yarn) < 2e-6)
	// Output:
	// shifted: true false
	// with other frequencies: false true
}
