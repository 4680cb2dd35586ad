/* The process that keeps a pod's sandbox, or a whole machine of the lab, alive: it waits, and reaps the children
 * that the kernel hands to the first process of a pid namespace. SIGTERM ends it, and with it, where it is that
 * first process, everything else in the namespace. */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void leave(int signal_number) {
    (void)signal_number;
    _exit(0);
}

static void reap(int signal_number) {
    (void)signal_number;
    while (waitpid(-1, NULL, WNOHANG) > 0) {
    }
}

int main(void) {
    /* SA_RESTART is pointless for pause(); SA_NOCLDSTOP spares wake-ups for stopped children. */
    struct sigaction on_child = {.sa_handler = reap, .sa_flags = SA_NOCLDSTOP};
    struct sigaction on_end = {.sa_handler = leave};
    if (sigaction(SIGCHLD, &on_child, NULL) || sigaction(SIGTERM, &on_end, NULL) ||
        sigaction(SIGINT, &on_end, NULL))
        return EXIT_FAILURE;
    reap(SIGCHLD); /* children that were handed over before the handler stood */
    for (;;)
        pause();
}
