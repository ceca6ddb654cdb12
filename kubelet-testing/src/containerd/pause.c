/* Holds the namespaces of a pod: reaps what loses its parent, and ends when asked to. */
#include <signal.h>
#include <stddef.h>
#include <sys/wait.h>

int main(void)
{
    sigset_t signals;
    int signal;

    /* A signal that is blocked reaches the first process of a namespace too, which has no defaults. */
    sigemptyset(&signals);
    sigaddset(&signals, SIGCHLD);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    for (;;) {
        if (sigwait(&signals, &signal) != 0)
            return 1;
        if (signal != SIGCHLD)
            return 0;
        while (waitpid(-1, NULL, WNOHANG) > 0)
            ;
    }
}
