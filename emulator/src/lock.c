/* File locks that end with the process that took them, also if another thread of it has forked meanwhile.
 *
 * flock belongs to the open file, and a fork copies the descriptor: if the parent is killed while a child without any
 * interest in NVML lives on, the lock would live on with the child. So every descriptor that may carry a lock is in a
 * list, and the child of a fork closes its copies before fork returns to it. The list has a lock of its own, held
 * while a descriptor is opened or closed and over a fork, never while anybody waits. A child made for exec by clone
 * or vfork does not come by here; there O_CLOEXEC ends the copy.
 *
 * fcntl's record locks are not inherited, but they are dropped when any descriptor of the file is closed by anybody in
 * the process, and do not keep apart threads or two users of one process, such as a test and its own control side.
 */
#include "emulator.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/file.h>
#include <unistd.h>

static struct lock *all;
static atomic_flag list_busy = ATOMIC_FLAG_INIT;

static void enter(void)
{
    while (atomic_flag_test_and_set_explicit(&list_busy, memory_order_acquire))
        usleep(50);
}

static void leave(void)
{
    atomic_flag_clear_explicit(&list_busy, memory_order_release);
}

static void forget_copies(void)
{
    for (struct lock *lock = all; lock != NULL; lock = lock->next) {
        close(lock->fd);
        lock->fd = -1;
    }
    all = NULL;
    leave();
}

__attribute__((constructor)) static void watch_forks(void)
{
    pthread_atfork(enter, leave, forget_copies);
}

bool lock_open(struct lock *lock, const char *path, int flags)
{
    enter();
    lock->fd = open(path, flags | O_CLOEXEC);
    int error = errno;
    if (lock->fd >= 0) {
        lock->next = all;
        all = lock;
    }
    leave();
    errno = error;
    return lock->fd >= 0;
}

/* Exclusive. false, with errno: somebody has it and `wait` is false, or the file system cannot lock. */
bool lock_take(struct lock *lock, bool wait)
{
    int done;
    do
        done = flock(lock->fd, wait ? LOCK_EX : LOCK_EX | LOCK_NB);
    while (done != 0 && errno == EINTR);
    return done == 0;
}

/* Lets go, taken or not, open or not. */
void lock_drop(struct lock *lock)
{
    if (lock->fd < 0)
        return;
    int error = errno;
    flock(lock->fd, LOCK_UN); /* also of a copy that a child has */
    enter();
    struct lock **link = &all;
    while (*link != NULL && *link != lock)
        link = &(*link)->next;
    if (*link == lock)
        *link = lock->next;
    close(lock->fd);
    lock->fd = -1;
    leave();
    errno = error;
}
