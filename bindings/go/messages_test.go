package rope

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

func TestMessagesAreInGo(t *testing.T) {
	for _, test := range []struct{ function, c, want string }{
		{"ApplyQK", "rope_apply_qk: args->q.heads (0) must be positive", "rope.ApplyQK: q.Heads (0) must be positive"},
		{"NewSets", "rope_context_create_sets: configs[3]->pairing must be that of configs[0]: sets differ in frequencies only",
			"rope.NewSets: cfgs[3].Pairing must be that of cfgs[0]: sets differ in frequencies only"},
		{"New", "rope_context_create: config->seq_len (0) must be positive, because ROPE_SCALING_LONGROPE requires it",
			"rope.New: SeqLen (0) must be positive, because ScalingLongRope requires it"},
		{"New", "rope_context_create: rounding must be FLOAT32 or COS_SIN", "rope.New: rounding must be FLOAT32 or RoundingCosSin"},
		{"New", "rope_context_create: config->scaling (ROPE_SCALING_YARN) must be DEFAULT with inv_freq, which replaces it",
			"rope.New: Scaling (ScalingYarn) must be ScalingDefault with InvFreq, which replaces it"},
		{"New", "rope_context_create: config->pair_axis[24] (193) must be below axes (8)",
			"rope.New: PairAxis[24] (193) must be below axes (8)"},
		{"ApplyTHD", "rope_apply_thd: k (0x21e2c0ffee) and k_heads (0) do not agree", "rope.ApplyTHD: k and kHeads (0) do not agree"},
		{"ApplyQK", "rope_apply_qk: args->positions.cu_seqlens[1] (4) breaks the rule: from 0 to tokens (3), never decreasing",
			"rope.ApplyQK: CuSeqlens[1] (4) breaks the rule: from 0 to tokens (3), never decreasing"},
		{"ApplyQK", "rope_apply_qk: args->positions must be zero with args->cos_sin", "rope.ApplyQK: Positions must be zero with CosSin"},
		{"ApplyQK", "rope_apply_qk: args->k_out overlaps args->q", "rope.ApplyQK: kOut overlaps q"},
		{"Append", "rope_apply_qk: args->fused->cache->k.heads (3) must be that of args->k (2)",
			"rope.Append: KVCache.K.Heads (3) must be that of k (2)"},
		{"Append", "rope_apply_qk: args->fused->cache->page_size (-1) is required, and must be from 1 to 1073741824",
			"rope.Append: KVCache.PageSize (-1) is required, and must be from 1 to 1073741824"},
		{"Append", "rope_apply_qk: args->fused->cache->slots_i64[7] (99) must be below 64, the number of slots in 4 pages of 16",
			"rope.Append: slots[7] (99) must be below 64, the number of slots in 4 pages of 16"},
		{"Append", "rope_apply_qk: args->fused->v_out overlaps args->fused->cache->v", "rope.Append: vOut overlaps KVCache.V"},
		{"Append", "rope_apply_qk: args->fused->v is set, but neither v_out nor cache->v is, where it would go",
			"rope.Append: v is set, but neither vOut nor KVCache.V is, where it would go"},
		{"Append", "rope_apply_qk: args->fused->v_norm->eps (0) is required, and must be positive and finite as a float",
			"rope.Append: Norms.V.Eps (0) is required, and must be positive and finite as a float"},
		{"ApplyQK", "rope_apply_qk: args->fused->k_norm->x[0].dtype (ROPE_DTYPE_I8) must be F32",
			"rope.ApplyQK: Norms.K.X.DType (DTypeI8) must be DTypeF32"},
		{"ApplyQK", "rope_apply_qk: args->fused->q_norm->weight_dtype (ROPE_DTYPE_I8) must be F32",
			"rope.ApplyQK: Norms.Q.Weight.DType (DTypeI8) must be DTypeF32"},
		{"ApplyQK", "rope_apply_qk: args->fused->k_norm is set, but args->k is absent",
			"rope.ApplyQK: Norms.K is set, but k is absent"},
		{"MoveBetween", "rope_apply_qk: args->fused->source->k.scale (NULL) is required by its dtype (ROPE_DTYPE_I8)",
			"rope.MoveBetween: source.KScale (nil) is required by its DType (DTypeI8)"},
		{"MoveSlots", "rope_apply_qk: args->fused->source->page_size (0) is required, and must be from 1 to 1073741824",
			"rope.MoveSlots: KVCache.PageSize (0) is required, and must be from 1 to 1073741824"},
		{"MoveSlots", "rope_apply_qk: args->fused->source->slots_i32[1] (8) must be below 8", "rope.MoveSlots: Source.slots[1] (8) must be below 8"},
		{"Prepared.Apply", "rope_prepared_apply: data->q_out overlaps data->q", "rope.Prepared.Apply: qOut overlaps q"},
		{"PreparedAppend.Apply", "rope_prepared_apply: data->cache_k overlaps data->cache_v",
			"rope.PreparedAppend.Apply: keys overlaps values"},
		{"New", "rope_context_create: out of memory", "rope.New: out of memory"},
		{"New", "rope_context_create: config->axes (3) needs either mrope_section or pair_axis, and not both, or frequency",
			"rope.New: Axes (3) needs either MRopeSection or PairAxis, and not both, or Frequency"},
		{"New", "rope_context_create: config->theta must be 0 with frequency, which replaces it",
			"rope.New: Theta must be 0 with Frequency, which replaces it"},
		{"New", "rope_context_create: config->freq_heads (2) must be from 0 to 0 without frequency",
			"rope.New: FreqHeads (2) must be from 0 to 0 without Frequency"},
		{"ApplyTHD", "rope_apply_thd: context (of cpu, with 1 axes and 2 frequency sets) must have one frequency set",
			"rope.ApplyTHD: context (of cpu, with 1 axes and 2 frequency sets) must have one frequency set"},
		// What a constructor sets has the name of the constructor.
		{"ApplyQK", "rope_apply_qk: args->positions.kind (ROPE_POSITIONS_OFFSET) gives all 3 axes of a token one id, and must be " +
			"one that gives each its own: config->ids_per_axis is 1",
			"rope.ApplyQK: Positions (Offset) gives all 3 axes of a token one id, and must be one that gives each its own: " +
				"IDsPerAxis is 1"},
		{"ShardIDs", "rope_shard_ids: positions->kind (ROPE_POSITIONS_IDS_STRIDED) must be OFFSET or SEQ_OFFSETS: the others have ids",
			"rope.ShardIDs: Positions (Same or StridedIDs) must be Offset or SeqOffsets: the others have ids"},
		{"ApplyQK", "rope_apply_qk: args->positions.shard is set, but ROPE_POSITIONS_IDS_BTA does not use it",
			"rope.ApplyQK: Shard is set, but BatchTokenAxesIDs does not use it"},
		{"Append", "rope_apply_qk: args->fused->cache->kind (ROPE_SLOTS_LINEAR) must be MAPPED with args->positions.shard",
			"rope.Append: Slots (LinearSlots) must be MappedSlots with Shard"},
		{"MoveBetween", "rope_apply_qk: args->fused->source->kind (ROPE_SLOTS_PAGED) must be MAPPED with args->positions.shard",
			"rope.MoveBetween: Source (PagedSlots or RaggedSlots) must be MappedSlots with Shard"},
		{"ApplyQK", "rope_apply_qk: args->cos_sin->format (ROPE_COS_SIN_SINUSOIDAL) must be one that is read",
			"rope.ApplyQK: CosSin (Sinusoidal) must be one that is read"},
		{"ApplyQK", "rope_apply_qk: args->cos_sin->stride_token (0) is required with stride_head",
			"rope.ApplyQK: CosSin.Stride (0) is required with HeadStride"},
		{"FillCosSin", "rope_cos_sin_fill: out->stride_head (8) must be 0 without heads",
			"rope.FillCosSin: HeadStride (8) must be 0 without heads"},
		{"FillCosSin", "rope_cos_sin_fill: out->sin (0x21e2c0ffee) overlaps data (0x21e2c0ffee): the rows of the two must be disjoint",
			"rope.FillCosSin: sin overlaps cos: the rows of the two must be disjoint"},
		{"ApplyQK", "rope_apply_qk: tokens * inner_world (4) must be a multiple of 3 with args->positions.shard->scheme ROPE_SHARD_STRIPED",
			"rope.ApplyQK: tokens * Then.World (4) must be a multiple of 3 with Shard.Scheme StripedShard"},
		{"MoveSlots", "rope_apply_qk: args->fused->from_positions->kind (ROPE_POSITIONS_IDS_T) gives all 3 axes of a token one id",
			"rope.MoveSlots: Step.From (TokenIDs) gives all 3 axes of a token one id"},
		{"MoveSlots", "rope_apply_qk: args->fused->from_positions: position 9 of token 2 in batch row 0 must be below 8",
			"rope.MoveSlots: Step.From: position 9 of token 2 in batch row 0 must be below 8"},
		{"MoveSlots", "rope_apply_qk: args->fused->from_positions->freq_sets[1] (9) must be from 0 to 2",
			"rope.MoveSlots: FromFreqSets[1] (9) must be from 0 to 2"},
		{"ApplyQK", "rope_apply_qk: args->fused->q_norm->weight_stride_head must be 0 with ROPE_NORM_KIND_RMS_PLAIN, which has no weights",
			"rope.ApplyQK: Norms.Q.PerHead must be false with NormKindRMSPlain, which has no weights"},
		{"ApplyQK", "rope_apply_qk: args->fused->k_norm must have ROPE_NORM_SPAN_HEAD and weight_stride_head 0 where heads have rows",
			"rope.ApplyQK: Norms.K must have NormSpanHead and PerHead false where heads have rows"},
		{"ApplyQK", "rope_apply_qk: args->fused->q_norm->weight_stride_head (10) must be 28 or more, the channels of a head: with " +
			"ROPE_NORM_SPAN_ALL_HEADS and GIVEN each has its weights",
			"rope.ApplyQK: Norms.Q.Weight's rows (10) must be 28 or more, the channels of a head: with NormSpanAllHeads and " +
				"NormSpanGiven each has its weights"},
		{"ApplyQK", "rope_apply_qk: args->fused->q_norm->rounding (ROPE_NORM_ROUNDING_FLOAT32) must be ROUNDED or EAGER",
			"rope.ApplyQK: Norms.Q.Rounding (NormRoundingFloat32) must be NormRoundingRounded or NormRoundingEager"},
		{"LatentIDs", "rope_model_latent_ids: args->count (2) must be from 0 to 1 for this class",
			"rope.LatentIDs: len(Grids) (2) must be from 0 to 1 for this class"},
		// Names of JSON and of the environment stay, and so does what is in quotes.
		{"LatentIDs", "rope_model_latent_ids: model is none of diffusers (no _class_name)",
			"rope.LatentIDs: model is none of diffusers (no _class_name)"},
		{"LatentIDs", "rope_model_latent_ids: args->grids[0] (9 x 9) must have at most 64 tokens, those of max_resolution",
			"rope.LatentIDs: Grids[0] (9 x 9) must have at most 64 tokens, those of max_resolution"},
		{"New", `rope_context_create: the environment variable LIBROPE_CPU_TARGET ("SSE_5") must be unset`,
			`rope.New: the environment variable LIBROPE_CPU_TARGET ("SSE_5") must be unset`},
		{"Contexts", `rope_context_create: layer type "full_attention": config->head_dim (0) must be even`,
			`rope.Contexts: layer type "full_attention": HeadDim (0) must be even`},
		{"FromJSON", `rope_model_create: rope_scaling.rope_type ("lama3") must be one of: a_b`,
			`rope.FromJSON: rope_scaling.rope_type ("lama3") must be one of: a_b`},
	} {
		if got := inGo(test.function, test.c); got != test.want {
			t.Errorf("%s\n became %s\n not    %s", test.c, got, test.want)
		}
	}
}

// Every message that the C sources hold, with a value for each of its placeholders.
func TestNoMessageHasNamesOfC(t *testing.T) {
	literals := regexp.MustCompile(`"%s: (?:[^"\\]|\\.)*"(?:\s*"(?:[^"\\]|\\.)*")*`)
	join := regexp.MustCompile(`"\s*"`)
	spec := regexp.MustCompile(`%(s\w?|[-.\w]*?[dugps])`)
	leftover := regexp.MustCompile(`->|\bROPE_|ROPE[A-Z]|\brope_|NULL|0x|\b[A-Za-z]+_[a-z]|%`)
	named := strings.NewReplacer("SCALING_head_dim", "SCALING_YARN", "POSITIONS_head_dim", "POSITIONS_IDS_T", "SLOTS_head_dim",
		"SLOTS_PAGED", "COS_SIN_head_dim", "COS_SIN_ANGLES", "SHARD_head_dim", "SHARD_ZIGZAG", "LAYOUT_head_dim", "LAYOUT_BSHD",
		"OPERATION_head_dim", "OPERATION_SHIFT")
	checked := 0
	for _, pattern := range []string{"*.cc", "base/*", "math/*", "context/*", "call/*", "model/model.cc", "model/prompt_ids.cc"} {
		files, err := filepath.Glob(filepath.Join("..", "..", "src", pattern))
		if err != nil || len(files) == 0 {
			t.Fatal(pattern, err, "; these tests run in the repository")
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, literal := range literals.FindAllString(string(text), -1) {
				format, err := strconv.Unquote(join.ReplaceAllString(literal, ""))
				if err != nil {
					t.Fatal(file, literal, err)
				}
				message := spec.ReplaceAllStringFunc(strings.TrimPrefix(format, "%s: "), func(s string) string {
					switch {
					case s == "%s":
						return "head_dim"
					case strings.HasPrefix(s, "%s"): // %sbatch: a path, then a field
						return "args->" + s[2:]
					case strings.HasSuffix(s, "p"):
						return "0x7f00c0de"
					}
					return "7"
				})
				message = named.Replace(message)
				if got := inGo("New", "rope_context_create: "+message); leftover.MatchString(got) {
					// struct_size is Go's own to set: no user can see it.
					if !strings.Contains(got, "struct_size") && !strings.Contains(got, "ROPE_INIT") {
						t.Errorf("%s: %q became %q", file, message, got)
					}
				}
				checked++
			}
		}
	}
	if checked < 60 {
		t.Errorf("only %d messages found", checked)
	}
}

// Every constant has the number and, in CamelCase, the name of its enumerator. (That none is missing is
// tested by bindings/enums.py.)
func TestConstantsHaveNames(t *testing.T) {
	header, err := os.ReadFile(filepath.Join("..", "..", "include", "librope", "rope.h"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range constants {
		words := strings.ReplaceAll(strings.TrimPrefix(c.c, "ROPE_"), "_", "")
		if !strings.HasPrefix(c.name, c.kind) || !strings.EqualFold(c.name, words) {
			t.Errorf("%s is %s of the type %s", c.c, c.name, c.kind)
		}
		if number := regexp.MustCompile(c.c + ` = (\d+)\b`).FindSubmatch(header); number == nil ||
			string(number[1]) != fmt.Sprint(c.value) {
			t.Errorf("%s is %d here, and %q in rope.h", c.c, c.value, number)
		}
	}
	got := fmt.Sprint(ScalingYarn, PairingHalves, AngleGGML, RoundingCosSin, DTypeBF16, LayoutBSHD, OperationShift,
		Pairing(9), Operation(-1))
	if got != "ScalingYarn PairingHalves AngleGGML RoundingCosSin DTypeBF16 LayoutBSHD OperationShift Pairing(9) "+
		"Operation(-1)" {
		t.Error(got)
	}
}
