#include "call/check_scale.h"

#include <cstddef>
#include <cstdio>

#include "base/decimal.h"
#include "base/dtype_text.h"
#include "base/status.h"
#include "base/struct_size.h"
#include "math/element.h"

namespace rope {
namespace {

// GroupScales whose inverse is a normal number.
constexpr double kLeastScale = 0x1p-126, kMostScale = 0x1p126;

bool IsScale(double value) { return value >= kLeastScale && value <= kMostScale; }

// The fields of one scale, as messages name them.
struct Field {
  const Call& call;
  const char* tensor;

  rope_status Needs(const char* field, const char* value, const char* rule) const {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s.scale->%s (%s) %s", call.function, tensor,
                field, value, rule);
  }
  template <class T>
  rope_status Needs(const char* field, T number, const char* rule) const {
    return Needs(field, static_cast<const char*>(Decimal(number).text), rule);
  }
  rope_status NeedsDtype(rope_dtype dtype, const char* rule) const {
    return Needs("dtype", static_cast<const char*>(DtypeText(dtype).text), rule);
  }
  rope_status IsFlag(const char* field, int32_t value) const {
    return value == 0 || value == 1 ? ROPE_OK : Needs(field, value, "must be 0 or 1");
  }
};

rope_status CheckFlags(const Field& field, const rope_scale& s) {
  if (rope_status e = field.IsFlag("computed", s.computed)) return e;
  if (rope_status e = field.IsFlag("power_of_two", s.power_of_two)) return e;
  if (rope_status e = field.IsFlag("round_first", s.round_first)) return e;
  if (s.reserved == 0) return ROPE_OK;
  return Fail(ROPE_ERROR_UNSUPPORTED, "%s: %s.scale->reserved must be 0 in this version",
              field.call.function, field.tensor);
}

// One scale for all.
rope_status CheckValue(const Field& field, const rope_scale& s) {
  if (!IsScale(s.value)) return field.Needs("value", s.value, "must be from 2^-126 to 2^126");
  const char* const kOfData = "must be 0 with value, which serves all";
  if (s.dtype != 0) return field.NeedsDtype(s.dtype, kOfData);
  if (s.group != 0) return field.Needs("group", s.group, kOfData);
  if ((s.stride_batch | s.stride_token | s.stride_head) != 0) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: %s.scale->stride_batch, stride_token and stride_head must be 0 with value, "
                "which serves all",
                field.call.function, field.tensor);
  }
  return ROPE_OK;
}

// What decides the scales that are computed.
rope_status CheckComputed(const Field& field, const rope_scale& s, bool has_array) {
  if (s.computed == 0) {
    if (s.power_of_two != 0) {
      return field.Needs("power_of_two", s.power_of_two, "must be 0 where scales are given");
    }
    if (s.min_scale != 0) {
      return field.Needs("min_scale", s.min_scale, "must be 0 where scales are given");
    }
    return ROPE_OK;
  }
  if (!has_array) {
    return field.Needs("value", s.value, "must be 0, as scales are computed, and written to data");
  }
  if (s.dtype == ROPE_DTYPE_E8M0 && s.power_of_two == 0) {
    return field.Needs("power_of_two", 0, "must be 1 with E8M0");
  }
  if (s.min_scale != 0 && !IsScale(s.min_scale)) {
    return field.Needs("min_scale", s.min_scale, "must be 0, or from 2^-126 to 2^126");
  }
  return ROPE_OK;
}

// How an array of scales lies.
rope_status DescribeArray(const Field& field, const rope_scale& s, int32_t heads, ScaleOwner of,
                          GroupScales* scales, BesideShape* shape) {
  const Call& call = field.call;
  if ((s.stride_batch | s.stride_token | s.stride_head) < 0) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: %s.scale->stride_batch, stride_token and stride_head (%lld, %lld, %lld) must "
                "not be negative",
                call.function, field.tensor, static_cast<long long>(s.stride_batch),
                static_cast<long long>(s.stride_token), static_cast<long long>(s.stride_head));
  }
  const int size = ElementSize(s.dtype);
  const int64_t counts[3] = {call.batch, call.tokens, heads},
                strides[3] = {s.stride_batch, s.stride_token, s.stride_head};
  int64_t bytes[3], extent = int64_t{scales->groups} * size, reach;
  for (int d = 0; d < 3; ++d) {
    if (__builtin_mul_overflow(strides[d], int64_t{size}, &bytes[d]) ||
        __builtin_mul_overflow(counts[d] - 1, bytes[d], &reach) ||
        __builtin_add_overflow(extent, reach, &extent)) {
      return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                  "%s: %s.scale->data, by its strides, reaches beyond the address space",
                  call.function, field.tensor);
    }
  }
  scales->strides = {bytes[0], bytes[1], bytes[2]};
  scales->dtype = s.dtype;
  *shape = {true,
            scales->computed && of != ScaleOwner::kSource,
            s.dtype,
            size,
            {{call.batch, call.tokens, heads},
             {bytes[0], bytes[1], bytes[2]},
             int64_t{scales->groups} * size},
            extent};
  if (!shape->written || IsInjective(shape->of)) return ROPE_OK;
  return Fail(
      ROPE_ERROR_INVALID_ARGUMENT,
      of == ScaleOwner::kCache
          ? "%s: %s.scale->stride_batch, stride_token and stride_head (%lld, %lld, %lld) let "
            "computed scales of heads, slots or pages overlap"
          : "%s: %s.scale->stride_batch, stride_token and stride_head (%lld, %lld, %lld) let "
            "computed scales of heads, tokens or batch rows overlap",
      call.function, field.tensor, static_cast<long long>(s.stride_batch),
      static_cast<long long>(s.stride_token), static_cast<long long>(s.stride_head));
}

}  // namespace

rope_status CheckScale(const Call& call, const char* name, const rope_tensor& t, int64_t width,
                       ScaleOwner of, DataOf data_of, GroupScales* scales, BesideShape* shape) {
  if (t.scale == nullptr) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s.scale (NULL) is required by its dtype (%s)",
                call.function, name, DtypeText(t.dtype).text);
  }
  const rope_scale* given = t.scale;
  rope_scale copy;
  if (given->struct_size != sizeof(rope_scale)) {
    char path[64];
    std::snprintf(path, sizeof(path), "%s.scale", name);
    if (rope_status s = CopyStruct(call.function, path, given, &copy)) return s;
    given = &copy;
  }
  const rope_scale& s = *given;
  const Field field = {call, name};
  const bool is_prepared = data_of == DataOf::kApplication;
  const bool has_array = is_prepared ? s.value == 0 : s.data != nullptr;
  if (is_prepared && s.data != nullptr) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: %s.scale->data (%p) must be NULL: each rope_prepared_apply is given the data",
                call.function, name, s.data);
  }
  if (!has_array && s.value == 0) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: %s.scale->value (0) and data (NULL): exactly one of them is required",
                call.function, name);
  }
  if (rope_status e = CheckFlags(field, s)) return e;
  if (rope_status e = CheckComputed(field, s, has_array)) return e;
  *scales = GroupScales{};
  scales->round_first = s.round_first != 0;
  scales->group = static_cast<int32_t>(width);
  if (!has_array) {
    scales->value = s.value;
    return CheckValue(field, s);
  }
  if (s.value != 0) return field.Needs("value", s.value, "must be 0 with data");
  if (s.dtype != ROPE_DTYPE_F32 && s.dtype != ROPE_DTYPE_E8M0) {
    return field.NeedsDtype(s.dtype, is_prepared
                                         ? "must be F32 or E8M0, those of the data that each "
                                           "rope_prepared_apply is given, as value is 0"
                                         : "must be F32 or E8M0, as data is given");
  }
  if (s.group < 0 || (s.group != 0 && width % s.group != 0)) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s.scale->group (%d) must divide %lld",
                call.function, name, s.group, static_cast<long long>(width));
  }
  if (s.group != 0) scales->group = s.group;
  scales->groups = static_cast<int32_t>(width / scales->group);
  scales->computed = s.computed != 0;
  scales->power_of_two = s.power_of_two != 0;
  scales->least = s.min_scale != 0 ? static_cast<float>(s.min_scale) : 0x1p-126f;
  return DescribeArray(field, s, t.heads, of, scales, shape);
}

}  // namespace rope
