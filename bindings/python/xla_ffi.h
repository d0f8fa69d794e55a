/* The part of XLA's foreign function interface that xla.c speaks: version 0.1 of its C ABI, the one
 * that every jaxlib since 0.5 accepts (a newer version would be refused by older ones). Declared
 * here and not taken from jaxlib's own header, so that the package builds without jaxlib, and the
 * version does not depend on the one that happens to be installed. The structs only ever grow at
 * their end; tests/xla_abi.c compares them with jaxlib's header. */
#ifndef LIBROPE_XLA_FFI_H_
#define LIBROPE_XLA_FFI_H_

#include <stddef.h>
#include <stdint.h>

enum { kXlaAbiMajor = 0, kXlaAbiMinor = 1 };

/* Element types, by their numbers in xla_data.proto. */
enum { kXlaS32 = 4, kXlaS64 = 5, kXlaF16 = 10, kXlaF32 = 11, kXlaBf16 = 16 };

/* Kinds of attributes, and the only extension that is known here. */
enum { kXlaArray = 1, kXlaScalar = 3, kXlaString = 4 };
enum { kXlaMetadata = 1 };
enum { kXlaInvalidArgument = 3 };

typedef struct XlaError XlaError; /* opaque: made by XLA, handed back to it */

typedef struct XlaExtension {
  size_t struct_size;
  int32_t type;
  struct XlaExtension* next;
} XlaExtension;

/* Attribute values. */
typedef struct XlaText {
  const char* data;
  size_t size;
} XlaText;

typedef struct XlaValue {
  int32_t dtype;
  void* value;
} XlaValue;

typedef struct XlaArray {
  int32_t dtype;
  size_t size;
  void* data;
} XlaArray;

/* A dense operand or result. */
typedef struct XlaBuffer {
  size_t struct_size;
  XlaExtension* extensions;
  int32_t dtype;
  void* data;
  int64_t rank;
  int64_t* dims;
} XlaBuffer;

typedef struct XlaList { /* of operands, and of results */
  size_t struct_size;
  XlaExtension* extensions;
  int64_t size;
  const int32_t* kinds;
  void** items;
} XlaList;

typedef struct XlaAttributes {
  size_t struct_size;
  XlaExtension* extensions;
  int64_t size;
  const int32_t* kinds;
  XlaText** names;
  void** values;
} XlaAttributes;

typedef struct XlaVersion {
  size_t struct_size;
  XlaExtension* extensions;
  int major, minor;
} XlaVersion;

typedef struct XlaErrorRequest {
  size_t struct_size;
  XlaExtension* extensions;
  const char* message; /* copied */
  int32_t code;
} XlaErrorRequest;

/* Functions of XLA for handlers: only the first is used. */
typedef struct XlaApi {
  size_t struct_size;
  XlaExtension* extensions;
  XlaVersion version;
  void* internal;
  XlaError* (*make_error)(XlaErrorRequest* request);
} XlaApi;

/* One call of a handler. */
typedef struct XlaFrame {
  size_t struct_size;
  XlaExtension* extensions;
  const XlaApi* api;
  void* context;
  int32_t stage;
  XlaList arguments, results;
  XlaAttributes attributes;
} XlaFrame;

/* Instead of a call, XLA may ask which version a handler speaks: the frame has this extension. */
typedef struct XlaHandlerMetadata {
  size_t struct_size;
  XlaVersion version;
  uint32_t traits;
} XlaHandlerMetadata;

typedef struct XlaMetadataExtension {
  XlaExtension base;
  XlaHandlerMetadata* metadata;
} XlaMetadataExtension;

#endif /* LIBROPE_XLA_FFI_H_ */
