/* Compiles if the declarations of xla_ffi.h are those of jaxlib's header: every offset, every
 * number. run-tests compiles it against the jaxlib of the test environment; it is never run. */
#include "xla/ffi/api/c_api.h"

#include "../xla_ffi.h"

#define NUMBER(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #ours)
#define OFFSET(ours, field, theirs, name) \
  _Static_assert(offsetof(ours, field) == offsetof(theirs, name), #ours "." #field); \
  _Static_assert(sizeof(((ours*)0)->field) == sizeof(((theirs*)0)->name), #ours "." #field)

NUMBER(kXlaAbiMajor, XLA_FFI_API_MAJOR);
_Static_assert(kXlaAbiMinor <= XLA_FFI_API_MINOR, "a jaxlib older than the ABI");
_Static_assert(kXlaAbiMinor == 1, "newer than that of jaxlib 0.5, the oldest that pyproject.toml allows");
NUMBER(kXlaS32, XLA_FFI_DataType_S32);
NUMBER(kXlaS64, XLA_FFI_DataType_S64);
NUMBER(kXlaF16, XLA_FFI_DataType_F16);
NUMBER(kXlaF32, XLA_FFI_DataType_F32);
NUMBER(kXlaBf16, XLA_FFI_DataType_BF16);
NUMBER(kXlaArray, XLA_FFI_AttrType_ARRAY);
NUMBER(kXlaScalar, XLA_FFI_AttrType_SCALAR);
NUMBER(kXlaString, XLA_FFI_AttrType_STRING);
NUMBER(kXlaMetadata, XLA_FFI_Extension_Metadata);
NUMBER(kXlaInvalidArgument, XLA_FFI_Error_Code_INVALID_ARGUMENT);

OFFSET(XlaExtension, type, XLA_FFI_Extension_Base, type);
OFFSET(XlaText, data, XLA_FFI_ByteSpan, ptr);
OFFSET(XlaText, size, XLA_FFI_ByteSpan, len);
OFFSET(XlaValue, dtype, XLA_FFI_Scalar, dtype);
OFFSET(XlaValue, value, XLA_FFI_Scalar, value);
OFFSET(XlaArray, size, XLA_FFI_Array, size);
OFFSET(XlaArray, data, XLA_FFI_Array, data);
OFFSET(XlaBuffer, dtype, XLA_FFI_Buffer, dtype);
OFFSET(XlaBuffer, data, XLA_FFI_Buffer, data);
OFFSET(XlaBuffer, rank, XLA_FFI_Buffer, rank);
OFFSET(XlaBuffer, dims, XLA_FFI_Buffer, dims);
OFFSET(XlaList, size, XLA_FFI_Args, size);
OFFSET(XlaList, items, XLA_FFI_Args, args);
OFFSET(XlaList, size, XLA_FFI_Rets, size);
OFFSET(XlaList, items, XLA_FFI_Rets, rets);
OFFSET(XlaAttributes, size, XLA_FFI_Attrs, size);
OFFSET(XlaAttributes, kinds, XLA_FFI_Attrs, types);
OFFSET(XlaAttributes, names, XLA_FFI_Attrs, names);
OFFSET(XlaAttributes, values, XLA_FFI_Attrs, attrs);
OFFSET(XlaErrorRequest, message, XLA_FFI_Error_Create_Args, message);
OFFSET(XlaErrorRequest, code, XLA_FFI_Error_Create_Args, errc);
OFFSET(XlaApi, version, XLA_FFI_Api, api_version);
OFFSET(XlaApi, make_error, XLA_FFI_Api, XLA_FFI_Error_Create);
OFFSET(XlaFrame, extensions, XLA_FFI_CallFrame, extension_start);
OFFSET(XlaFrame, api, XLA_FFI_CallFrame, api);
OFFSET(XlaFrame, arguments, XLA_FFI_CallFrame, args);
OFFSET(XlaFrame, results, XLA_FFI_CallFrame, rets);
OFFSET(XlaFrame, attributes, XLA_FFI_CallFrame, attrs);
OFFSET(XlaVersion, major, XLA_FFI_Api_Version, major_version);
OFFSET(XlaVersion, minor, XLA_FFI_Api_Version, minor_version);
OFFSET(XlaHandlerMetadata, version, XLA_FFI_Metadata, api_version);
OFFSET(XlaHandlerMetadata, traits, XLA_FFI_Metadata, traits);
OFFSET(XlaMetadataExtension, metadata, XLA_FFI_Metadata_Extension, metadata);
