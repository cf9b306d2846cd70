/* A CUDA driver with one call: it returns the thread that made it, which must ask for the mode
 * "thread local". */
#define _GNU_SOURCE
#include <unistd.h>

static int last_thread;

int cuThreadExchangeStreamCaptureMode(int *mode)
{
    if (*mode != 1)
        return 1;
    *mode = 0;
    last_thread = gettid();
    return 0;
}

int frd_test_last_thread(void)
{
    return last_thread;
}
