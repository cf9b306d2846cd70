/* For LD_PRELOAD: a machine with as many cores as CORES says, which torch's worker server counts. */
#define _GNU_SOURCE
#include <stdlib.h>

int get_nprocs(void)
{
    return atoi(getenv("CORES"));
}
