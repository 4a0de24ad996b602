/* The calls of MPI that `calls.rs` needs, with plain types: communicators and datatypes differ between implementations of MPI. */

#include <mpi.h>
#include <string.h>

/* Initializes MPI for calls of any thread; returns 0 if it cannot. */
int rl_mpi_init(int *rank, int *n_ranks) {
    int provided = MPI_THREAD_SINGLE;
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &provided) != MPI_SUCCESS) return 0;
    MPI_Comm_rank(MPI_COMM_WORLD, rank);
    MPI_Comm_size(MPI_COMM_WORLD, n_ranks);
    return provided == MPI_THREAD_MULTIPLE;
}

/* Writes the name of this host, with a zero at the end, to `name`, which has room for `len` bytes. */
void rl_mpi_host(char *name, int len) {
    char all[MPI_MAX_PROCESSOR_NAME + 1] = {0};
    int n = 0;
    MPI_Get_processor_name(all, &n);
    strncpy(name, all, (size_t)len - 1);
    name[len - 1] = 0;
}

void rl_mpi_all_gather(const void *own, int len, void *all, const int *lens, const int *begins) {
    MPI_Allgatherv(own, len, MPI_BYTE, all, lens, begins, MPI_BYTE, MPI_COMM_WORLD);
}

void rl_mpi_broadcast(void *bytes, int len, int root) { MPI_Bcast(bytes, len, MPI_BYTE, root, MPI_COMM_WORLD); }

void rl_mpi_barrier(void) { MPI_Barrier(MPI_COMM_WORLD); }

/* Sends one byte, which MPI buffers. */
void rl_mpi_send(unsigned char byte, int to) { MPI_Send(&byte, 1, MPI_BYTE, to, 0, MPI_COMM_WORLD); }

/* Receives one byte; returns -1 if none has arrived. */
int rl_mpi_try_receive(int from) {
    int arrived = 0;
    unsigned char byte = 0;
    MPI_Iprobe(from, 0, MPI_COMM_WORLD, &arrived, MPI_STATUS_IGNORE);
    if (!arrived) return -1;
    MPI_Recv(&byte, 1, MPI_BYTE, from, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return byte;
}

/* Sends bytes to another rank; may block until that receives them. */
void rl_mpi_send_bytes(const void *bytes, int len, int to) { MPI_Send(bytes, len, MPI_BYTE, to, 1, MPI_COMM_WORLD); }

/* Returns the length of the next message of `rl_mpi_send_bytes`; -1 if none has arrived. */
int rl_mpi_probe(int from) {
    int arrived = 0, len = 0;
    MPI_Status status;
    MPI_Iprobe(from, 1, MPI_COMM_WORLD, &arrived, &status);
    if (!arrived) return -1;
    MPI_Get_count(&status, MPI_BYTE, &len);
    return len;
}

void rl_mpi_receive_bytes(void *bytes, int len, int from) {
    MPI_Recv(bytes, len, MPI_BYTE, from, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

void rl_mpi_abort(int code) { MPI_Abort(MPI_COMM_WORLD, code); }

void rl_mpi_finalize(void) { MPI_Finalize(); }
