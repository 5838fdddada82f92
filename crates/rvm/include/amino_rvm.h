/* Recoverable memory: writes, allocation and deallocation that roll back with a transaction.
 *
 * Every function returns a number from 0 on, or a negative errno. Beyond those named below, all return
 *   -ENXIO   before rvm_init
 *   -EPERM   in a child of fork, which has no recoverable memory: its mappings are not inherited
 *   -EFAULT  a NULL pointer where a result is to be stored
 *
 * Any number of threads may read and write recoverable memory in the one transaction. While one of these functions runs,
 * no thread may write there, nor be in a system call that does. The file transaction is the calling thread's, so the same
 * thread begins and ends.
 * Pointers kept outside of recoverable memory do not roll back.
 *
 * Link with -lamino_rvm_c. Linux 6.7 or newer, x86-64.
 */
#ifndef AMINO_RVM_H
#define AMINO_RVM_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Transactions of memory alone. Without it they go along with those of files, below `amino run`. */
#define RVM_MEMORY_ONLY 1

/* How deep transactions can be nested. */
#define RVM_DEPTH_MAX 64

/* Makes the process's recoverable memory, once, with a heap of heap_len bytes; 0: no heap. Only what is used takes memory.
 * -ENOSYS      not under `amino run`, and RVM_MEMORY_ONLY not given
 * -EOPNOTSUPP  the run has no store; Linux before 6.7
 * -EALREADY    called before
 * -EINVAL      unknown flags
 * -ENOMEM, -EFBIG, -EMFILE, -ENFILE, -ENOENT (no /proc), -EACCES (no access to /proc/self/pagemap) */
int rvm_init(int flags, size_t heap_len);

/* Begins a transaction, nested when one is open; returns the depth, from 1 on.
 * -EMLINK  beyond RVM_DEPTH_MAX; or what the file transaction says. Then nothing was begun. */
int rvm_begin(void);

/* Commits the current transaction: a nested one into the one around it.
 * -ENODATA  there is none, or files had lost theirs, then memory was aborted, too
 * -EBUSY    the file transaction cannot end now: both are still open
 * others    files could not commit: both were aborted */
int rvm_commit(void);

/* Aborts the current transaction: memory is as it was at its begin.
 * -ENODATA  there is none
 * others    what the file transaction says; memory was aborted */
int rvm_abort(void);

/* The number of transactions open within each other. */
int rvm_depth(void);

/* Stores the start of a region of at least len zero bytes, in whole pages. By abort it vanishes.
 * -EINVAL (len is 0), -ENOMEM, -EFBIG (len beyond `ulimit -f`), -EMFILE, -ENFILE */
int rvm_map(size_t len, void **start);

/* Gives a region up, which an abort brings back to where it was. -EINVAL: no region starts there. */
int rvm_unmap(void *start);

/* Stores the address of size bytes of the heap, undefined, at a multiple of align: a power of two up to 4096.
 * -ENOMEM (the heap is full, or there is none), -EINVAL (align), -EUCLEAN (the heap's own data was overwritten) */
int rvm_alloc(size_t size, size_t align, void **block);

/* Frees what rvm_alloc gave; NULL is ignored. -EINVAL (not allocated), -EUCLEAN. */
int rvm_free(void *block);

#ifdef __cplusplus
}
#endif

#endif
