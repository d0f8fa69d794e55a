//go:build cgo

package rope

import (
	"maps"
	"regexp"
	"strings"
	"sync"
)

// inGo rewrites a message of the C library in the names of this package: "rope_apply_qk: args->q.heads
// (0) must be positive" becomes "rope.ApplyQK: q.Heads (0) must be positive".
func inGo(function, message string) string {
	if _, rule, found := strings.Cut(message, ": "); found && strings.HasPrefix(message, "rope_") {
		message = rule
	}
	if function == "FromGGUFValues" {
		message = ofParsed(message)
	}
	if !namesKeys[function] {
		message = address.ReplaceAllString(message, "")
		message = strings.ReplaceAll(message, "_norm->x[0]", "_norm->x") // a pointer
		message = ofConfig.Replace(path.ReplaceAllStringFunc(constructed.Replace(message), goPath))
		message = ofNorm.Replace(message)
		if strings.HasPrefix(message, "CosSin") || function == "FillCosSin" {
			message = ofRows.Replace(message)
		}
		if strings.Contains(message, "Scale.") {
			message = ofScale.Replace(message)
		}
		if function == "MoveSlots" { // whose source is its cache
			message = strings.ReplaceAll(message, "source.", "KVCache.")
		}
		if namesCache[function] {
			message = ofCache.Replace(message)
		}
	}
	return "rope." + function + ": " + message
}

// namesKeys are the functions whose messages have the names of config.json and of GGUF files.
var namesKeys = map[string]bool{"FromJSON": true, "FromGGUF": true,
	"FromGGUFValues": true, "LoadGGUF": true}

// ofParsed names the arguments of FromGGUFValues, which knows of no file and of no counts.
func ofParsed(message string) string {
	for c, name := range map[string]string{"count (": "len(values) (", "factor_count (": "len(factors) ("} {
		if rest, found := strings.CutPrefix(message, c); found {
			return name + rest
		}
	}
	return ofTensor.ReplaceAllString(message, `factors["$1"] `)
}

var ofTensor = regexp.MustCompile(`^tensor "(.*?)" (?:is in the file, and )?`)

// namesCache are the functions of a [Call], whose cache is a [Cache].
var namesCache = map[string]bool{"Apply": true, "PrepareCall": true, "PreparedCall.Apply": true}

// ofConfig is a field of a [Config] that C's messages name behind others, where it looks like prose.
var ofConfig = strings.NewReplacer("not both, or frequency", "not both, or Frequency", "be 0 with frequency,",
	"be 0 with Frequency,", " without frequency", " without Frequency")

// ofScale are fields of a [Scale] that C's messages name behind another one of it, where they look like prose.
var ofScale = strings.NewReplacer(" and data (nil)", " and Data (nil)", "written to data", "written to Data or E8M0",
	"with value", "with Value", "given the data", "given the Data")

// constructed are the fields that Go's constructors set: what they make is named instead.
var constructed = strings.NewReplacer("from_positions->kind", "from_positions", "positions.kind", "positions",
	"positions->kind", "args->positions", "cache->kind", "slots", "source->kind", "source", "cos_sin->format", "cos_sin",
	"from_positions->freq_sets", "from_freq_sets")

// ofNorm is for weight_stride_head, which follows from PerHead and from the channels of Weight.
var ofNorm = strings.NewReplacer("WeightStrideHead (", "Weight's rows (", "WeightStrideHead must be 0",
	"PerHead must be false", "WeightStrideHead 0", "PerHead false")

// ofRows are the strides of a [CosSin], which are fields of it.
var ofRows = strings.NewReplacer("Strides.Token", "Stride", "Strides.Head", "HeadStride", "Sin overlaps data",
	"sin overlaps cos")

var ofCache = strings.NewReplacer("KVCache.KScale", "Cache.K.Scale", "KVCache.VScale", "Cache.V.Scale",
	"KVCache.", "Cache.")

var (
	// Where memory lies helps nobody, and is not for strangers to read in an answer of a server.
	address = regexp.MustCompile(` \(0x[0-9a-f]+\)`)
	// A chain of C's names: args->positions.cu_seqlens, configs[3]->theta, ROPE_SCALING_YARN, NULL. What is in quotes
	// was given.
	path  = regexp.MustCompile(`"[^"]*"|[A-Za-z_]\w*(?:(?:\[\d+\])?(?:->|\.)[A-Za-z]\w*)*`)
	arrow = regexp.MustCompile(`->|\.`)
)

// cacheFields are those that KVCache has; the others are of Slots.
var cacheFields = regexp.MustCompile(`^(k|v|pages|page_size)\b`)

// scaleField is the scale of k or v of a cache, which Go keeps beside them.
var scaleField = regexp.MustCompile(`^([kv])\.scale\b`)

// normField is how a norm of rope_fused begins.
var normField = regexp.MustCompile(`^[qkv]_norm\b`)

// structs are C's arguments, of which Go's messages name the fields.
var structs = map[string]bool{"args": true, "config": true, "data": true, "out": true, "positions": true}

// goNames are the names that are not C's in camel case.
var goNames = map[string]string{
	"rope_apply_qk": "ApplyQK", "rope_prepared_apply": "Apply",

	"q": "q", "k": "k", "q_out": "qOut", "k_out": "kOut", "q_heads": "qHeads", "k_heads": "kHeads",
	"configs": "cfgs", "freq_set": "freqSet", "t_interval": "TInterval", "struct_size": "struct_size",
	"dtype": "DType", "weight_dtype": "Weight.DType", "inv_freq_dtype": "InvFreqDType", "mscale": "MScale", "mscale_all_dim": "MScaleAllDim",
	"mrope_section": "MRopeSection", "mrope_interleaved": "MRopeInterleaved",
	"stride_batch": "Strides.Batch", "stride_token": "Strides.Token", "stride_head": "Strides.Head",
	"stride_axis": "Strides.Axis", "device_index": "Device.Index",
	"table_length": "the length of ShortFactor, LongFactor, FreqFactors, InvFreq, PairAxis and rows of Frequency",
	"ids_i32":      "ids", "ids_i64": "ids", "ids_f32": "ids", "offsets_i32": "offsets", "offsets_i64": "offsets",
	"v": "v", "v_out": "vOut", "rest": "rest", "rest_out": "restOut", "slots_i32": "slots", "slots_i64": "slots", "slots_length": "the number of slots",
	"cache_k": "keys", "cache_v": "values",
	"page_table": "page table", "page_table_stride": "width", "page_starts": "pageStarts", "starts": "starts",
	"fps": "FPS", "ids_per_axis": "IDsPerAxis", "NULL": "nil",
	"ROPE_SHARD_CONTIGUOUS": "ContiguousShard", "ROPE_SHARD_ZIGZAG": "ZigzagShard",
	"ROPE_SHARD_STRIPED": "StripedShard", "ROPE_SHARD_HEADS": "HeadsShard",

	"inner_scheme": "Then.Scheme", "inner_rank": "Then.Rank", "inner_world": "Then.World", "inner_block": "Then.Block",
	"from_positions": "Step.From", "OFFSET": "Offset", "SEQ_OFFSETS": "SeqOffsets",
	"ROPE_POSITIONS_OFFSET": "Offset", "ROPE_POSITIONS_SEQ_OFFSETS": "SeqOffsets", "ROPE_POSITIONS_IDS_T": "TokenIDs",
	"ROPE_POSITIONS_IDS_BT": "BatchTokenIDs", "ROPE_POSITIONS_IDS_ABT": "AxesBatchTokenIDs",
	"ROPE_POSITIONS_IDS_BTA": "BatchTokenAxesIDs", "ROPE_POSITIONS_IDS_STRIDED": "Same or StridedIDs",
	"MAPPED": "MappedSlots", "ROPE_SLOTS_MAPPED": "MappedSlots", "ROPE_SLOTS_PAGED": "PagedSlots or RaggedSlots",
	"ROPE_SLOTS_LINEAR":   "LinearSlots",
	"ROPE_COS_SIN_PACKED": "Packed", "ROPE_COS_SIN_PACKED_SIN_FIRST": "PackedSinFirst", "ROPE_COS_SIN_SPLIT": "Split",
	"ROPE_COS_SIN_FULL_HALVES": "FullHalves", "ROPE_COS_SIN_FULL_INTERLEAVED": "FullInterleaved",
	"ROPE_COS_SIN_COMPLEX": "Complex", "ROPE_COS_SIN_SINUSOIDAL": "Sinusoidal", "ROPE_COS_SIN_ANGLES": "Angles",
	"ROPE_COS_SIN_ANGLES_FULL": "AnglesFull",

	"EAGER":          "NormRoundingEager", // messages of norms alone have it without its type
	"count":          "len(Grids)",        // of LatentIDs alone
	"max_resolution": "max_resolution",    // a key of JSON
}

// constantNames are Go's names of C's constants, with and without their prefix. What two types have in
// common (FLOAT32) is no name without it.
var constantNames = sync.OnceValue(func() map[string]string {
	all, types := maps.Clone(goNames), map[string]int{}
	tail := func(c constant) string { // NORM_SPAN is a type
		_, name, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(c.c, "ROPE_"), "NORM_"), "_")
		return name
	}
	for _, c := range constants {
		types[tail(c)]++
	}
	for _, c := range constants {
		all[c.c] = c.name
		if types[tail(c)] == 1 {
			all[tail(c)] = c.name
		}
	}
	return all
})

// goPath translates one chain. A word of prose has neither an underscore nor a struct before it.
func goPath(chain string) string {
	if chain[0] == '"' {
		return chain
	}
	first, rest, dotted := strings.Cut(chain, "->")
	if !dotted {
		return goWords(chain, false)
	}
	if structs[first] {
		chain = strings.TrimPrefix(strings.TrimPrefix(rest, "positions."), "fused->")
	}
	chain = normField.ReplaceAllStringFunc(chain, func(norm string) string { return "Norms->" + strings.ToUpper(norm[:1]) })
	for _, cache := range []struct{ c, name string }{{"cache->", "KVCache."}, {"source->", "source."}} {
		if field, of := strings.CutPrefix(chain, cache.c); of && cacheFields.MatchString(field) {
			field = goWords(scaleField.ReplaceAllString(field, "${1}_scale"), true)
			return cache.name + strings.ToUpper(field[:1]) + field[1:]
		}
	}
	return goWords(strings.TrimPrefix(chain, "cache->"), true)
}

func goWords(chain string, fields bool) string {
	words := arrow.Split(chain, -1)
	for i, word := range words {
		name, index, subscripted := strings.Cut(word, "[")
		if known, ok := constantNames()[name]; ok {
			name = known
		} else if isField := name[0] >= 'a'; isField && (fields || strings.Contains(name, "_")) {
			name = camel(name) // others are keys of JSON (_class_name) or of the environment
		}
		if subscripted {
			name += "[" + index
		}
		words[i] = name
	}
	return strings.Join(words, ".")
}

func camel(name string) string {
	words := strings.Split(name, "_")
	for i, word := range words {
		if word != "" {
			words[i] = strings.ToUpper(word[:1]) + word[1:]
		}
	}
	return strings.Join(words, "")
}
