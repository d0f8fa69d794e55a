package rope_test

import (
	"slices"
	"strings"
	"testing"

	rope "github.com/librope/librope/bindings/go"
)

const shardDim = 16

func shardValues(tokens int) []float32 {
	x := make([]float32, tokens*shardDim)
	for i := range x {
		x[i] = float32(i%251) - 100
	}
	return x
}

// Ranks together have the bits of one call.
func TestRanksTogether(t *testing.T) {
	c, err := rope.New(rope.Config{HeadDim: shardDim, Theta: 10000, Pairing: rope.PairingHalves})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	const length, ranks = 48, 4
	cu := []int32{0, 16, 48}
	shards := map[string]func(rank int) rope.Shard{
		"contiguous": func(r int) rope.Shard { return rope.ContiguousShard(r, ranks) },
		"zigzag":     func(r int) rope.Shard { return rope.ZigzagShard(r, ranks) },
		"striped":    func(r int) rope.Shard { return rope.StripedShard(r, ranks, 3) },
		"documents":  func(r int) rope.Shard { return rope.ZigzagShard(r, ranks).PerDocument() },
		"two levels": func(r int) rope.Shard {
			return rope.ZigzagShard(r/2, 2).Then(rope.ContiguousShard(r%2, 2))
		},
	}
	before := rope.Offset(3)
	for _, operation := range []rope.Operation{rope.OperationForward, rope.OperationBackward, rope.OperationRerotate} {
		step := rope.Step{Batch: 1, Tokens: length, Positions: rope.Offset(7), CuSeqlens: cu, Operation: operation}
		if operation == rope.OperationRerotate {
			step.From = &before
		}
		whole := shardValues(length)
		if err := rope.ApplyQK(c, rope.BSHD(whole, 1), rope.Tensor[float32]{}, step); err != nil {
			t.Fatal(err)
		}
		for name, shard := range shards {
			seen := make([]int, length)
			for rank := range ranks {
				step.Tokens, step.Shard = length/ranks, shard(rank)
				ids, numbers, err := rope.ShardIDs(step)
				if err != nil || len(ids) != length/ranks {
					t.Fatal(name, len(ids), err)
				}
				take := func(from []float32) (rows []float32) {
					for _, n := range numbers {
						rows = append(rows, from[n*shardDim:(n+1)*shardDim]...)
					}
					return rows
				}
				q := take(shardValues(length))
				if err := rope.ApplyQK(c, rope.BSHD(q, 1), rope.Tensor[float32]{}, step); err != nil {
					t.Fatal(name, err)
				}
				if !slices.Equal(q, take(whole)) {
					t.Errorf("%s, rank %d: other bits", name, rank)
				}
				for _, n := range numbers {
					seen[n]++
				}
			}
			if slices.Min(seen) != 1 || slices.Max(seen) != 1 {
				t.Errorf("%s: tokens are on %v ranks", name, seen)
			}
		}
	}
}

// Positions before a move may be ids, which are of the tokens of this rank.
func TestKeysOfAShardMoveFromIDs(t *testing.T) {
	c, err := rope.New(rope.Config{HeadDim: shardDim, Theta: 10000, Pairing: rope.PairingHalves})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	step := rope.Step{Batch: 1, Tokens: 4, Positions: rope.Offset(5), CuSeqlens: []int32{0, 4, 8},
		Shard: rope.ContiguousShard(1, 2)}
	ids, _, err := rope.ShardIDs(step)
	if err != nil {
		t.Fatal(err)
	}
	var moved [2][]float32
	step.Positions, step.Operation = rope.Offset(20), rope.OperationRerotate
	for n, from := range []rope.Positions{rope.TokenIDs(ids), rope.Offset(5)} {
		moved[n], step.From = shardValues(4), &from
		if err := rope.ApplyQK(c, rope.BSHD(moved[n], 1), rope.Tensor[float32]{}, step); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(moved[0], moved[1]) {
		t.Error("other bits")
	}
	step.Operation, step.From, step.FromFreqSets = rope.OperationForward, nil, []int32{0, 0}
	if err := rope.ApplyQK(c, rope.BSHD(moved[0], 1), rope.Tensor[float32]{}, step); err == nil {
		t.Error("FromFreqSets without From")
	}
}

// A rank has a part of each sequence, or none, and each token moves from its own position and set.
func TestKeysOfAShardMoveFromIDsAndSets(t *testing.T) {
	config := rope.Config{HeadDim: shardDim, Theta: 10000, Pairing: rope.PairingHalves}
	other := config
	other.Theta = 5e5
	c, err := rope.NewSets([]rope.Config{config, other})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	const length = 24
	take := func(from []float32, rows []int64) (taken []float32) {
		for _, n := range rows {
			taken = append(taken, from[n*shardDim:(n+1)*shardDim]...)
		}
		return taken
	}
	ids, all := make([]int64, length), make([]int64, length)
	for n := range ids {
		ids[n], all[n] = int64(n*n%101), int64(n)
	}
	moved := func(step rope.Step, from []int64, rows []int64) []float32 {
		before := rope.TokenIDs(from)
		step.From, step.Operation, step.Tokens = &before, rope.OperationRerotate, len(rows)
		k := take(shardValues(length), rows)
		if err := rope.ApplyQK(c, rope.Tensor[float32]{}, rope.BSHD(k, 1), step); err != nil {
			t.Fatal(err)
		}
		return k
	}
	for rank := range 2 {
		outer := rope.ContiguousShard(rank, 2)
		for name, shard := range map[string]rope.Shard{"contiguous": outer, "zigzag": rope.ZigzagShard(rank, 2),
			"striped": rope.StripedShard(rank, 2, 1), "documents": rope.ZigzagShard(rank, 2).PerDocument(),
			"two levels": outer.Then(rope.ZigzagShard(1, 3))} {
			for _, fromSets := range [][]int32{nil, {1, 0, 0, 0}} {
				whole := rope.Step{Batch: 1, Tokens: length, Positions: rope.Offset(20),
					CuSeqlens: []int32{0, 4, 4, 20, 24}, FreqSets: []int32{0, 1, 1, 0}, FromFreqSets: fromSets}
				part := whole
				part.Shard, part.Tokens = shard, length/2
				if name == "two levels" {
					part.Tokens = length / 6
				}
				part.FromFreqSets = nil // which a step that does not move must not have
				_, numbers, err := rope.ShardIDs(part)
				if err != nil {
					t.Fatal(name, err)
				}
				part.FromFreqSets = fromSets
				var own []int64
				for _, n := range numbers {
					own = append(own, ids[n])
				}
				if !slices.Equal(moved(part, own, numbers), take(moved(whole, ids, all), numbers)) {
					t.Error(name, rank, fromSets, "other bits")
				}
			}
		}
	}
}

// Ids of more tokens than memory holds are an error, not the end of the process.
func TestShardIDsBeyondMemory(t *testing.T) {
	for _, tokens := range []int{1 << 44, 1 << 59, 1 << 60} {
		for batch := range 2 {
			if _, _, err := rope.ShardIDs(rope.Step{Batch: batch, Tokens: tokens, Positions: rope.Offset(0)}); err == nil {
				t.Error(batch, tokens)
			}
		}
	}
}

func TestShardsRefused(t *testing.T) {
	c, err := rope.New(rope.Config{HeadDim: shardDim, Theta: 10000, Pairing: rope.PairingHalves})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	half := rope.ContiguousShard(0, 2)
	for rule, shard := range map[string]rope.Shard{
		"tokens (3) must be a multiple of 2 with Shard.Scheme ZigzagShard": rope.ZigzagShard(0, 2),
		"Rank (2) must be from 0 to 1":                                     rope.ContiguousShard(2, 2),
		"rank, world and block must be below 2^31":                         rope.HeadsShard(5, 1<<40),
		"there are two groups of ranks at most":                            half.Then(half).Then(half),
		"begins with ContiguousShard":                                      rope.Shard{}.Then(half),
		"begins with":                                                      half.Then(rope.Shard{}.PerDocument()),
		"two groups of ranks at most":                                      half.Then(half.Then(half)),
		"inner divides a row, and must not be PerDocument":                 half.Then(half.PerDocument()),
		"Block (-1) must not be negative":                                  rope.StripedShard(0, 2, -1),
		"PerDocument (1) needs CuSeqlens":                                  rope.ContiguousShard(0, 2).PerDocument(),
		"Shard.Then.Rank (3) must be from 0 to 1":                          rope.ContiguousShard(0, 2).Then(rope.ContiguousShard(3, 2)),
	} {
		q := shardValues(3)
		step := rope.Step{Batch: 1, Tokens: 3, Positions: rope.Offset(0), Shard: shard}
		err := rope.ApplyQK(c, rope.BSHD(q, 1), rope.Tensor[float32]{}, step)
		if err == nil || !strings.Contains(err.Error(), rule) {
			t.Errorf("%v, not %q", err, rule)
		}
		if !slices.Equal(q, shardValues(3)) {
			t.Error("written")
		}
		if _, _, err := rope.ShardIDs(step); err == nil {
			t.Errorf("ids are not refused: %q", rule)
		}
	}
	step := rope.Step{Batch: 1, Tokens: 4, Positions: rope.Offset(3), Shard: rope.ZigzagShard(0, 2)}
	ids, numbers, err := rope.ShardIDs(step)
	if err != nil || !slices.Equal(ids, []int64{3, 4, 9, 10}) || !slices.Equal(numbers, []int64{0, 1, 6, 7}) {
		t.Error(ids, numbers, err)
	}
	step.Positions = rope.TokenIDs([]int64{0, 1, 2, 3})
	if _, _, err := rope.ShardIDs(step); err == nil {
		t.Error("ids have no shard")
	}
	step = rope.Step{Batch: -1, Tokens: 4, Positions: rope.Offset(0)}
	if _, _, err := rope.ShardIDs(step); err == nil {
		t.Error("a negative batch")
	}
}
