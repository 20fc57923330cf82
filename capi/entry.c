// The functions of the API: each enters the library, calls the function of Go with the same
// name and leaves. Its prototype is checked against the header here.
#include "_cgo_export.h"
#include "process.h"

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

uint32_t mscclgo_version(void) { return MSCCLGO_VERSION; }

const char* mscclgo_version_text(void) {
  return "v" TEXT(MSCCLGO_VERSION_MAJOR) "." TEXT(MSCCLGO_VERSION_MINOR) "." TEXT(MSCCLGO_VERSION_PATCH);
}

mscclgo_status mscclgo_check_version(uint32_t header) {
  void* context;
  return capi_enter(&context) ? capi_check_version(header) : MSCCLGO_INVALID;
}

const char* mscclgo_status_name(mscclgo_status status) {
  switch (status) {
    case MSCCLGO_OK:
      return "ok";
    case MSCCLGO_INVALID:
      return "invalid use";
    case MSCCLGO_TIMEOUT:
      return "timeout";
    case MSCCLGO_ABORTED:
      return "aborted";
    case MSCCLGO_REMOTE:
      return "remote failure";
    case MSCCLGO_UNSUPPORTED:
      return "unsupported";
    case MSCCLGO_SYSTEM:
      return "system error";
  }
  return "unknown status";
}

// In Go, handles and addresses of the device are numbers: its collector may not see a
// pointer that points nowhere.
#define ID(handle) ((uintptr_t)(handle))
#define AT(address) ((uintptr_t)(address))
#define NEW(result) ((uintptr_t*)(result))

#define CALL(name, parameters, arguments)              \
  mscclgo_status mscclgo_##name parameters {           \
    void* context;                                     \
    if (!capi_enter(&context)) return MSCCLGO_INVALID; \
    mscclgo_status status = capi_##name arguments;     \
    capi_leave(context);                               \
    return status;                                     \
  }

CALL(set_log, (mscclgo_log f, void* user, int level), (f, AT(user), level))
CALL(group_join, (const mscclgo_group_options* options, mscclgo_group* group),
     ((mscclgo_group_options*)options, NEW(group)))
CALL(group_connect,
     (const char* id, int rank, int size, const mscclgo_group_options* options, mscclgo_group* group),
     ((char*)id, rank, size, (mscclgo_group_options*)options, NEW(group)))
CALL(group_join_configured,
     (const mscclgo_group_options* options, const mscclgo_group_config* config, mscclgo_group* group),
     ((mscclgo_group_options*)options, (mscclgo_group_config*)config, NEW(group)))
CALL(group_connect_configured,
     (const char* id, int rank, int size, const mscclgo_group_options* options,
      const mscclgo_group_config* config, mscclgo_group* group),
     ((char*)id, rank, size, (mscclgo_group_options*)options, (mscclgo_group_config*)config, NEW(group)))
CALL(group_destroy, (mscclgo_group group), (ID(group)))
CALL(group_rank, (mscclgo_group group, int* rank), (ID(group), rank))
CALL(group_get_pipe_pool, (mscclgo_group group, mscclgo_pipe_pool* pool), (ID(group), pool))
CALL(group_size, (mscclgo_group group, int* size), (ID(group), size))
CALL(group_device, (mscclgo_group group, mscclgo_device* device), (ID(group), NEW(device)))
CALL(group_error, (mscclgo_group group), (ID(group)))
CALL(group_abort, (mscclgo_group group, const char* text), (ID(group), (char*)text))
CALL(group_barrier, (mscclgo_group group, int64_t timeout_ms), (ID(group), timeout_ms))
CALL(group_all_gather,
     (mscclgo_group group, const void* sent, size_t bytes, void* received, int64_t timeout_ms),
     (ID(group), (void*)sent, bytes, received, timeout_ms))
CALL(group_broadcast, (mscclgo_group group, int root, void* data, size_t bytes, int64_t timeout_ms),
     (ID(group), root, data, bytes, timeout_ms))
CALL(group_synchronize, (mscclgo_group group, mscclgo_stream stream, int64_t timeout_ms),
     (ID(group), ID(stream), timeout_ms))
CALL(group_max_blocks,
     (mscclgo_group group, mscclgo_kernel kernel, int threads, int dynamic_shared_bytes, int* blocks),
     (ID(group), ID(kernel), threads, dynamic_shared_bytes, blocks))
CALL(group_get_handle, (mscclgo_group group, mscclgo_group_handle* handle), (ID(group), handle))
CALL(group_split, (mscclgo_group group, int color, int key, mscclgo_group* part),
     (ID(group), color, key, NEW(part)))
CALL(group_split_configured,
     (mscclgo_group group, int color, int key, const mscclgo_group_config* config, mscclgo_group* part),
     (ID(group), color, key, (mscclgo_group_config*)config, NEW(part)))
CALL(rendezvous_create, (const char* address, mscclgo_rendezvous* rendezvous),
     ((char*)address, NEW(rendezvous)))
CALL(rendezvous_id, (mscclgo_rendezvous rendezvous, char* text, size_t bytes), (ID(rendezvous), text, bytes))
CALL(rendezvous_destroy, (mscclgo_rendezvous rendezvous), (ID(rendezvous)))
CALL(group_reform, (mscclgo_group group, const char* id, int rank, int size, int64_t timeout_ms),
     (ID(group), (char*)id, rank, size, timeout_ms))
CALL(group_reform_collectives, (mscclgo_group group, int* captured), (ID(group), captured))
CALL(elastic_create, (const char* address, const mscclgo_elastic_options* options, mscclgo_elastic* server),
     ((char*)address, (mscclgo_elastic_options*)options, NEW(server)))
CALL(elastic_id, (mscclgo_elastic server, char* text, size_t bytes), (ID(server), text, bytes))
CALL(elastic_destroy, (mscclgo_elastic server), (ID(server)))
CALL(member_create,
     (const char* id, const mscclgo_group_options* options, const mscclgo_group_config* config,
      mscclgo_member* member),
     ((char*)id, (mscclgo_group_options*)options, (mscclgo_group_config*)config, NEW(member)))
CALL(member_connect, (mscclgo_member member, int64_t timeout_ms, mscclgo_group* group),
     (ID(member), timeout_ms, NEW(group)))
CALL(member_reform, (mscclgo_member member, mscclgo_group group, int64_t timeout_ms),
     (ID(member), ID(group), timeout_ms))
CALL(member_generation, (mscclgo_member member, uint64_t* generation), (ID(member), generation))
CALL(member_newcomers, (mscclgo_member member, int* waiting), (ID(member), waiting))
CALL(member_leave, (mscclgo_member member), (ID(member)))
CALL(member_destroy, (mscclgo_member member), (ID(member)))
CALL(memory_channels_reform, (mscclgo_memory_channels channels, int* captured), (ID(channels), captured))
CALL(port_channels_reform, (mscclgo_port_channels channels, mscclgo_proxy proxy, int* captured),
     (ID(channels), ID(proxy), captured))
CALL(peer_memory_reform, (mscclgo_peer_memory memory, int* captured), (ID(memory), captured))
CALL(run, (int ranks, const char* const* command, int signals, int* code),
     (ranks, (char**)command, signals, code))
CALL(device_open, (const char* name, mscclgo_device* device), ((char*)name, NEW(device)))
CALL(device_destroy, (mscclgo_device device), (ID(device)))
CALL(device_get_info, (mscclgo_device device, mscclgo_device_info* info), (ID(device), info))
CALL(buffer_create, (mscclgo_device device, uint64_t bytes, mscclgo_buffer* buffer),
     (ID(device), bytes, NEW(buffer)))
CALL(buffer_create_host, (mscclgo_device device, uint64_t bytes, mscclgo_buffer* buffer),
     (ID(device), bytes, NEW(buffer)))
CALL(buffer_wrap, (mscclgo_device device, const void* pointer, uint64_t bytes, mscclgo_buffer* buffer),
     (ID(device), AT(pointer), bytes, NEW(buffer)))
CALL(buffer_slice, (mscclgo_buffer buffer, uint64_t offset, uint64_t bytes, mscclgo_buffer* slice),
     (ID(buffer), offset, bytes, NEW(slice)))
CALL(buffer_destroy, (mscclgo_buffer buffer), (ID(buffer)))
CALL(buffer_size, (mscclgo_buffer buffer, uint64_t* bytes), (ID(buffer), bytes))
CALL(buffer_pointer, (mscclgo_buffer buffer, void** pointer), (ID(buffer), NEW(pointer)))
CALL(buffer_host_pointer, (mscclgo_buffer buffer, void** pointer), (ID(buffer), NEW(pointer)))
CALL(copy_in, (mscclgo_buffer to, uint64_t offset, const void* from, uint64_t bytes),
     (ID(to), offset, (void*)from, bytes))
CALL(copy_out, (void* to, mscclgo_buffer from, uint64_t offset, uint64_t bytes),
     (to, ID(from), offset, bytes))
CALL(stream_create, (mscclgo_device device, mscclgo_stream* stream), (ID(device), NEW(stream)))
CALL(buffer_wrap_host, (mscclgo_device device, void* pointer, uint64_t bytes, mscclgo_buffer* buffer),
     (ID(device), AT(pointer), bytes, NEW(buffer)))
CALL(stream_wrap, (mscclgo_device device, void* handle, mscclgo_stream* stream),
     (ID(device), AT(handle), NEW(stream)))
CALL(event_wrap, (mscclgo_device device, void* handle, mscclgo_event* event),
     (ID(device), AT(handle), NEW(event)))
CALL(event_handle, (mscclgo_event event, void** handle), (ID(event), NEW(handle)))
CALL(stream_destroy, (mscclgo_stream stream), (ID(stream)))
CALL(stream_handle, (mscclgo_stream stream, void** handle), (ID(stream), NEW(handle)))
CALL(stream_synchronize, (mscclgo_stream stream, int64_t timeout_ms), (ID(stream), timeout_ms))
CALL(stream_query, (mscclgo_stream stream, int* done), (ID(stream), done))
CALL(stream_copy,
     (mscclgo_stream stream, mscclgo_buffer to, uint64_t to_offset, mscclgo_buffer from, uint64_t from_offset,
      uint64_t bytes),
     (ID(stream), ID(to), to_offset, ID(from), from_offset, bytes))
CALL(stream_fill, (mscclgo_stream stream, mscclgo_buffer to, uint64_t offset, int value, uint64_t bytes),
     (ID(stream), ID(to), offset, value, bytes))
CALL(stream_begin_capture, (mscclgo_stream stream), (ID(stream)))
CALL(stream_end_capture, (mscclgo_stream stream, mscclgo_graph* graph), (ID(stream), NEW(graph)))
CALL(graph_launch, (mscclgo_graph graph, mscclgo_stream stream), (ID(graph), ID(stream)))
CALL(graph_destroy, (mscclgo_graph graph), (ID(graph)))
CALL(event_create, (mscclgo_device device, mscclgo_event* event), (ID(device), NEW(event)))
CALL(event_destroy, (mscclgo_event event), (ID(event)))
CALL(event_record, (mscclgo_event event, mscclgo_stream stream), (ID(event), ID(stream)))
CALL(event_wait, (mscclgo_event event, mscclgo_stream stream), (ID(event), ID(stream)))
CALL(event_synchronize, (mscclgo_event event, int64_t timeout_ms), (ID(event), timeout_ms))
CALL(event_query, (mscclgo_event event, int* reached), (ID(event), reached))
CALL(event_elapsed, (mscclgo_event start, mscclgo_event end, double* ms), (ID(start), ID(end), ms))
CALL(module_compile,
     (mscclgo_device device, const char* name, const char* source, const mscclgo_compile_options* options,
      mscclgo_module* module),
     (ID(device), (char*)name, (char*)source, (mscclgo_compile_options*)options, NEW(module)))
CALL(module_load, (mscclgo_device device, const void* image, size_t bytes, mscclgo_module* module),
     (ID(device), (void*)image, bytes, NEW(module)))
CALL(module_load_bundle, (mscclgo_device device, const char* file, mscclgo_module* module),
     (ID(device), (char*)file, NEW(module)))
CALL(precompile, (const mscclgo_precompile_options* options), ((mscclgo_precompile_options*)options))
CALL(module_destroy, (mscclgo_module module), (ID(module)))
CALL(module_kernel, (mscclgo_module module, const char* name, mscclgo_kernel* kernel),
     (ID(module), (char*)name, NEW(kernel)))
CALL(kernel_parameters, (mscclgo_kernel kernel, mscclgo_parameter* parameters, size_t room, size_t* count),
     (ID(kernel), parameters, room, count))
CALL(kernel_parameter_type, (mscclgo_kernel kernel, size_t i, mscclgo_parameter_type* type),
     (ID(kernel), i, type))
CALL(kernel_parameter_pointee, (mscclgo_kernel kernel, size_t i, const char** name),
     (ID(kernel), i, (char**)name))
CALL(kernel_launch,
     (mscclgo_kernel kernel, mscclgo_stream stream, const mscclgo_launch_config* config,
      const void* parameters, size_t bytes),
     (ID(kernel), ID(stream), (mscclgo_launch_config*)config, (void*)parameters, bytes))
CALL(memory_channels_create,
     (mscclgo_group group, mscclgo_buffer local, const mscclgo_channel_options* options,
      mscclgo_memory_channels* channels),
     (ID(group), ID(local), (mscclgo_channel_options*)options, NEW(channels)))
CALL(memory_channels_handles, (mscclgo_memory_channels channels, void** handles),
     (ID(channels), NEW(handles)))
CALL(memory_channels_get_set, (mscclgo_memory_channels channels, mscclgo_channel_set* set),
     (ID(channels), set))
CALL(memory_channels_handle, (mscclgo_memory_channels channels, int i, int rank, void** handle),
     (ID(channels), i, rank, NEW(handle)))
CALL(memory_channels_destroy, (mscclgo_memory_channels channels), (ID(channels)))
CALL(proxy_create, (mscclgo_group group, mscclgo_proxy* proxy), (ID(group), NEW(proxy)))
CALL(trigger_ends, (const mscclgo_trigger* trigger, int64_t timeout_ms, int* ends),
     ((mscclgo_trigger*)trigger, timeout_ms, ends))
CALL(proxy_create_with_handler,
     (mscclgo_group group, mscclgo_handler handler, void* user, mscclgo_proxy* proxy),
     (ID(group), handler, AT(user), NEW(proxy)))
CALL(proxy_get_fifo, (mscclgo_proxy proxy, mscclgo_fifo_handle* fifo), (ID(proxy), fifo))
CALL(proxy_destroy, (mscclgo_proxy proxy), (ID(proxy)))
CALL(port_channels_create,
     (mscclgo_group group, mscclgo_proxy proxy, mscclgo_buffer local, const mscclgo_channel_options* options,
      mscclgo_port_channels* channels),
     (ID(group), ID(proxy), ID(local), (mscclgo_channel_options*)options, NEW(channels)))
CALL(port_channels_handles, (mscclgo_port_channels channels, void** handles), (ID(channels), NEW(handles)))
CALL(port_channels_get_set, (mscclgo_port_channels channels, mscclgo_channel_set* set), (ID(channels), set))
CALL(port_channels_handle, (mscclgo_port_channels channels, int i, int rank, void** handle),
     (ID(channels), i, rank, NEW(handle)))
CALL(port_channels_create_for_streams,
     (mscclgo_group group, mscclgo_proxy proxy, mscclgo_buffer local, const mscclgo_channel_options* options,
      mscclgo_port_channels* channels),
     (ID(group), ID(proxy), ID(local), (mscclgo_channel_options*)options, NEW(channels)))

// The operations of port channels on streams: a copy, a value for a word, an exchange, and what has no
// arguments of its own.
#define PORT_COPY(name)                                                                                 \
  CALL(port_##name,                                                                                     \
       (mscclgo_port_channels channels, mscclgo_stream stream, int i, int rank, uint64_t remote_offset, \
        uint64_t local_offset, uint64_t bytes),                                                         \
       (ID(channels), ID(stream), i, rank, remote_offset, local_offset, bytes))
#define PORT_VALUE(name)                                                                                \
  CALL(port_##name,                                                                                     \
       (mscclgo_port_channels channels, mscclgo_stream stream, int i, int rank, uint64_t remote_offset, \
        uint64_t value),                                                                                \
       (ID(channels), ID(stream), i, rank, remote_offset, value))
#define PORT_EXCHANGE(name)                                                                             \
  CALL(port_##name,                                                                                     \
       (mscclgo_port_channels channels, mscclgo_stream stream, int i, int rank, uint64_t remote_offset, \
        uint64_t value, uint64_t local_offset),                                                         \
       (ID(channels), ID(stream), i, rank, remote_offset, value, local_offset))
#define PORT_ALONE(name)                                                                      \
  CALL(port_##name, (mscclgo_port_channels channels, mscclgo_stream stream, int i, int rank), \
       (ID(channels), ID(stream), i, rank))
PORT_COPY(put)
PORT_COPY(put_with_signal)
PORT_COPY(put_with_signal_and_flush)
PORT_COPY(get)
PORT_COPY(get_and_flush)
PORT_VALUE(store)
PORT_VALUE(store_and_flush)
PORT_VALUE(add)
PORT_VALUE(add_and_flush)
PORT_EXCHANGE(exchange)
PORT_EXCHANGE(exchange_and_flush)
PORT_ALONE(signal)
PORT_ALONE(flush)
PORT_ALONE(wait)

CALL(pipes_create, (mscclgo_group group, const mscclgo_pipe_options* options, mscclgo_pipes* pipes),
     (ID(group), (mscclgo_pipe_options*)options, NEW(pipes)))
CALL(pipes_open, (mscclgo_pipes pipes, const int* ranks, int count), (ID(pipes), (int*)ranks, count))
CALL(pipes_get_set, (mscclgo_pipes pipes, mscclgo_pipe_set* set), (ID(pipes), set))
CALL(pipes_destroy, (mscclgo_pipes pipes), (ID(pipes)))
CALL(peer_memory_create, (mscclgo_group group, mscclgo_buffer buffer, mscclgo_peer_memory* memory),
     (ID(group), ID(buffer), NEW(memory)))
CALL(peer_memory_get_handle, (mscclgo_peer_memory memory, mscclgo_peer_memory_handle* handle),
     (ID(memory), handle))
CALL(peer_memory_destroy, (mscclgo_peer_memory memory), (ID(memory)))
CALL(prepare, (mscclgo_group group, const mscclgo_call* call, mscclgo_prepared* prepared),
     (ID(group), (mscclgo_call*)call, NEW(prepared)))
CALL(prepared_launch, (mscclgo_prepared prepared, mscclgo_stream stream), (ID(prepared), ID(stream)))
CALL(prepared_reform, (mscclgo_prepared prepared, int* captured), (ID(prepared), captured))
CALL(prepared_destroy, (mscclgo_prepared prepared), (ID(prepared)))
CALL(all_reduce,
     (mscclgo_group group, mscclgo_stream stream, void* out, const void* in, uint64_t count,
      mscclgo_type type, mscclgo_operation operation),
     (ID(group), ID(stream), AT(out), AT(in), count, type, operation))
CALL(all_gather,
     (mscclgo_group group, mscclgo_stream stream, void* out, const void* in, uint64_t count,
      mscclgo_type type),
     (ID(group), ID(stream), AT(out), AT(in), count, type))
CALL(reduce_scatter,
     (mscclgo_group group, mscclgo_stream stream, void* out, const void* in, uint64_t count,
      mscclgo_type type, mscclgo_operation operation),
     (ID(group), ID(stream), AT(out), AT(in), count, type, operation))
CALL(all_to_all,
     (mscclgo_group group, mscclgo_stream stream, void* out, const void* in, uint64_t count,
      mscclgo_type type),
     (ID(group), ID(stream), AT(out), AT(in), count, type))
CALL(all_to_all_v,
     (mscclgo_group group, mscclgo_stream stream, void* out, const void* in, const uint64_t* send_counts,
      const uint64_t* receive_counts, mscclgo_type type),
     (ID(group), ID(stream), AT(out), AT(in), (uint64_t*)send_counts, (uint64_t*)receive_counts, type))
CALL(broadcast,
     (mscclgo_group group, mscclgo_stream stream, void* out, const void* in, uint64_t count,
      mscclgo_type type, int root),
     (ID(group), ID(stream), AT(out), AT(in), count, type, root))
CALL(reduce,
     (mscclgo_group group, mscclgo_stream stream, void* out, const void* in, uint64_t count,
      mscclgo_type type, mscclgo_operation operation, int root),
     (ID(group), ID(stream), AT(out), AT(in), count, type, operation, root))
CALL(gather,
     (mscclgo_group group, mscclgo_stream stream, void* out, const void* in, uint64_t count,
      mscclgo_type type, int root),
     (ID(group), ID(stream), AT(out), AT(in), count, type, root))
CALL(scatter,
     (mscclgo_group group, mscclgo_stream stream, void* out, const void* in, uint64_t count,
      mscclgo_type type, int root),
     (ID(group), ID(stream), AT(out), AT(in), count, type, root))
CALL(send_receive,
     (mscclgo_group group, mscclgo_stream stream, void* out, const void* in, uint64_t count,
      mscclgo_type type),
     (ID(group), ID(stream), AT(out), AT(in), count, type))
CALL(collective_load,
     (mscclgo_group group, mscclgo_collective collective, uint64_t count, mscclgo_type type,
      mscclgo_operation operation, int root),
     (ID(group), collective, count, type, operation, root))
CALL(messages_load, (mscclgo_group group), (ID(group)))
CALL(messages_launch, (mscclgo_group group, const mscclgo_message* messages, size_t count),
     (ID(group), (mscclgo_message*)messages, count))

mscclgo_status mscclgo_send(mscclgo_group group, mscclgo_stream stream, const void* in, uint64_t count,
                            mscclgo_type type, int peer) {
  mscclgo_message one = {stream, (void*)in, count, type, peer, MSCCLGO_SEND};
  return mscclgo_messages_launch(group, &one, 1);
}

mscclgo_status mscclgo_recv(mscclgo_group group, mscclgo_stream stream, void* out, uint64_t count,
                            mscclgo_type type, int peer) {
  mscclgo_message one = {stream, out, count, type, peer, MSCCLGO_RECV};
  return mscclgo_messages_launch(group, &one, 1);
}
