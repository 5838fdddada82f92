/* Each call under the stand-in for the monitor. */
#include <amino.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#define EXPECT(call, wanted)                                            \
    do {                                                                \
        int got = (call);                                               \
        if (got != (wanted)) {                                          \
            printf("%s: %d instead of %d\n", #call, got, (int)(wanted)); \
            return 1;                                                   \
        }                                                               \
    } while (0)

int main(void)
{
    static char text[65536];
    char outer[AMINO_ID_SIZE], inner[AMINO_ID_SIZE], aside[AMINO_ID_SIZE];
    int depth, length;
    EXPECT(amino_commit(), -ENODATA);
    EXPECT(amino_abort(), -ENODATA);
    EXPECT(amino_detach(), -ENODATA);
    EXPECT(amino_suspend(aside), -ENODATA);
    EXPECT(amino_begin(outer), 0);
    EXPECT(amino_begin(inner), 0);
    EXPECT(strlen(inner), 32);
    EXPECT(strcmp(outer, inner) != 0, 1);

    length = amino_status(NULL, 0);
    memset(text, 'x', sizeof text);
    EXPECT(amino_status(text, sizeof text), length);
    EXPECT(strlen(text), length);
    EXPECT(strstr(text, inner) > strstr(text, outer), 1);
    memset(text, 'x', sizeof text);
    EXPECT(amino_status(text, 11), length);
    EXPECT(strcmp(text, "{\"current\""), 0);
    EXPECT(text[11], 'x');

    EXPECT(amino_abort(), 0);
    EXPECT(amino_suspend(aside), 0);
    EXPECT(strcmp(aside, outer), 0);
    EXPECT(amino_resume(inner), -ENOENT);
    EXPECT(amino_resume(outer), 0);
    EXPECT(amino_resume(outer), -EBUSY);
    EXPECT(amino_attach(outer), -EBUSY);
    EXPECT(amino_commit(), 0);
    EXPECT(amino_attach(outer), -ENOENT);

    for (depth = 0; depth < 64; depth++)
        EXPECT(amino_begin(NULL), 0);
    EXPECT(amino_begin(NULL), -EMLINK);
    EXPECT(amino_detach(), 0);
    EXPECT(amino_abort(), -ENODATA);
    return 0;
}
