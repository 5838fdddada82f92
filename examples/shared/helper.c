/*
 * Attaches to a transaction by its identifier and writes a part in it. The process that began the transaction commits it.
 *
 *     helper ID DIR       see share.sh
 */
#include <amino.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
    char path[4096];
    if (argc != 3)
        return fprintf(stderr, "usage: %s ID DIR\n", argv[0]), 2;
    int error = amino_attach(argv[1]);
    if (error < 0)
        return fprintf(stderr, "attach %s: %s\n", argv[1], amino_strerror(error)), 1;
    snprintf(path, sizeof path, "%s/part 2", argv[2]);
    FILE *file = fopen(path, "w");
    if (!file || fputs("from the helper\n", file) < 0 || fclose(file))
        return perror(path), 1;
    /* Not needed at the end of a program, but then the next operation is outside. */
    error = amino_detach();
    if (error < 0)
        return fprintf(stderr, "detach: %s\n", amino_strerror(error)), 1;
    return 0;
}
