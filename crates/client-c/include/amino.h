/*
 * libamino: transactions for programs that run under `amino run`.
 *
 * Each thread has a stack of transactions. The innermost is the current one: every operation on files of the store belongs
 * to it, in this thread and in the processes it starts. A nested transaction commits into the one around it, an outermost
 * one to the disk. A transaction that its last process leaves, by exit or by detach, is aborted.
 *
 *     char id[AMINO_ID_SIZE];
 *     int error = amino_begin(id);
 *     if (error < 0)
 *         fprintf(stderr, "begin: %s\n", amino_strerror(error));
 *
 * Compile and link: cc program.c $(pkg-config --cflags --libs amino)
 *
 * Every function but amino_strerror() returns 0 or a length on success and a negated errno on failure; errno itself may
 * change. Of each of them:
 *
 *   -ENOSYS      not running under amino
 *   -EOPNOTSUPP  the run has no store
 *   -EINVAL      the monitor does not know the operation (it is older than this library)
 *   -EPERM       the process belongs to another user
 *   -ESRCH       the process does not belong to the run
 *
 * Operations on files can fail with EDEADLK or ETIMEDOUT inside a transaction, when others hold locks: abort it then,
 * wait for a short random time and do all of it again.
 *
 * The functions start no threads and keep no state, and may be called from any thread.
 */
#ifndef AMINO_H
#define AMINO_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Room for an identifier: 32 lower-case hexadecimal digits and a NUL. */
#define AMINO_ID_SIZE 33

/*
 * Begins a transaction, nested when there is a current one, and writes its identifier to `id`, which may be NULL.
 *
 *   -EMLINK      64 are nested already
 *   -EDEADLK, -ETIMEDOUT
 *                others hold locks on what this process has open; try again
 *   -EPROTO      the monitor's answer is not understood (it is newer than this library)
 */
int amino_begin(char id[AMINO_ID_SIZE]);

/*
 * Commits the current transaction.
 *
 *   -ENODATA     there is none
 *   -EBUSY       another process has a transaction open that is nested in this one, which stays open
 *   -ENOSPC      there is no room for it; it was aborted
 *   -EIO         the disk failed; it was aborted
 */
int amino_commit(void);

/*
 * Aborts the current transaction, with those nested in it.
 *
 *   -ENODATA     there is none
 */
int amino_abort(void);

/*
 * Writes a description (JSON) to `buf`: at most `len` bytes, the last of which is a NUL. Returns its whole length in bytes
 * without the NUL, as snprintf(3) does: `len` or more means that it was cut off. `buf` may be NULL when `len` is 0.
 *
 *   {"current": [{"id": "...", "depth": 1, "names": 0, "inodes": 0, "bytes": 0, "shared_locks": 0, "exclusive_locks": 0,
 *                 "conflicts": 0, "processes": [4711]}],
 *    "suspended": ["..."]}
 *
 * `current` is the stack, outermost first. `conflicts` counts operations that failed because of others' locks.
 *
 *   -EFAULT      `buf` is NULL
 *   -EOVERFLOW   the description is longer than INT_MAX
 */
int amino_status(char *buf, size_t len);

/*
 * Sets the current transaction, with those around it, aside: what follows is outside of it until amino_resume(). Writes
 * its identifier to `id`.
 *
 *   -ENODATA     there is none
 *   -EFAULT      `id` is NULL
 *   -EPROTO      the monitor's answer is not understood
 */
int amino_suspend(char id[AMINO_ID_SIZE]);

/*
 * Makes a transaction that this process suspended the current one again.
 *
 *   -ENOENT      there is none of that identifier
 *   -EBUSY       there is a current transaction
 *   -EINVAL      `id` is no identifier
 *   -EFAULT      `id` is NULL
 */
int amino_resume(const char *id);

/*
 * Joins a transaction of another process of the same user.
 *
 *   -ENOENT      none of that identifier is open
 *   -EPERM       it is another user's
 *   -EBUSY       there is a current transaction
 *   -EINVAL      `id` is no identifier
 *   -EFAULT      `id` is NULL
 */
int amino_attach(const char *id);

/*
 * Leaves the current transaction, and those around it, without ending them. One that its last process leaves is aborted.
 *
 *   -ENODATA     there is none
 */
int amino_detach(void);

/* What a returned code means, in English. Never NULL, never to be freed; takes negated and plain errnos. */
const char *amino_strerror(int code);

#ifdef __cplusplus
}
#endif

#endif
