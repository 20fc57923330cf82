// A program of MPI that uses the library: a group of mpirun's ranks, from the environment, and
// another by an id that MPI has carried. What both sum is compared with MPI's own sums.
#include <mscclgo.h>

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define COUNT 1000
#define OK(call) check((call), #call, __LINE__)
#define TRUE(condition) hold((condition), #condition, __LINE__)

static void check(mscclgo_status status, const char* call, int line) {
  if (status == MSCCLGO_OK) return;
  fprintf(stderr, "mpi.c:%d: %s: %s\n", line, call, mscclgo_error_text());
  MPI_Abort(MPI_COMM_WORLD, 1);
}

static void hold(int condition, const char* text, int line) {
  if (condition) return;
  fprintf(stderr, "mpi.c:%d: not so: %s\n", line, text);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

// sum compares the group's sums of numbers with MPI's, which sums while the group's are made.
static void sum(mscclgo_group group, float* numbers) {
  mscclgo_device device;
  mscclgo_buffer buffer;
  mscclgo_stream stream;
  void* address;
  float sums[COUNT], want[COUNT];
  OK(mscclgo_group_device(group, &device));
  OK(mscclgo_buffer_create(device, sizeof sums, &buffer));
  OK(mscclgo_buffer_pointer(buffer, &address));
  OK(mscclgo_stream_create(device, &stream));
  OK(mscclgo_copy_in(buffer, 0, numbers, sizeof sums));
  OK(mscclgo_all_reduce(group, stream, address, address, COUNT, MSCCLGO_F32, MSCCLGO_SUM));
  TRUE(MPI_Allreduce(numbers, want, COUNT, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD) == MPI_SUCCESS);
  OK(mscclgo_group_synchronize(group, stream, -1));
  OK(mscclgo_copy_out(sums, buffer, 0, sizeof sums));
  for (int i = 0; i < COUNT; i++) TRUE(sums[i] == want[i]);
  OK(mscclgo_group_barrier(group, -1));
}

int main(int count, char** arguments) {
  alarm(120);
  TRUE(MPI_Init(&count, &arguments) == MPI_SUCCESS);
  int rank, size, number;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  float numbers[COUNT];
  for (int i = 0; i < COUNT; i++) numbers[i] = (float)((rank + 1) * i);

  mscclgo_group group;
  OK(mscclgo_group_join(NULL, &group));
  OK(mscclgo_group_rank(group, &number));
  TRUE(number == rank);
  OK(mscclgo_group_size(group, &number));
  TRUE(number == size);
  sum(group, numbers);
  OK(mscclgo_group_destroy(group));

  mscclgo_rendezvous rendezvous = NULL;
  char id[MSCCLGO_ID_BYTES] = "";
  if (rank == 0) {
    OK(mscclgo_rendezvous_create("127.0.0.1:0", &rendezvous));
    OK(mscclgo_rendezvous_id(rendezvous, id, sizeof id));
  }
  TRUE(MPI_Bcast(id, sizeof id, MPI_CHAR, 0, MPI_COMM_WORLD) == MPI_SUCCESS);
  OK(mscclgo_group_connect(id, rank, size, NULL, &group));
  sum(group, numbers);
  OK(mscclgo_group_destroy(group));
  if (rank == 0) OK(mscclgo_rendezvous_destroy(rendezvous));

  TRUE(MPI_Finalize() == MPI_SUCCESS);
  printf("rank %d of %d: all %d sums are MPI's\n", rank, size, COUNT);
  return 0;
}
