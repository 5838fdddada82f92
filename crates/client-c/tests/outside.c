/* Outside of a monitor every call says so; malformed arguments are refused before. */
#include <amino.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

static int failed;

static void expect(const char *call, int got, int wanted)
{
    if (got != wanted) {
        printf("%s: %d instead of %d\n", call, got, wanted);
        failed = 1;
    }
}

#define EXPECT(call, wanted) expect(#call, call, wanted)

int main(void)
{
    const char *id = "0123456789abcdef0123456789abcdef";
    char room[AMINO_ID_SIZE], text[64];
    EXPECT(amino_begin(room), -ENOSYS);
    EXPECT(amino_begin(NULL), -ENOSYS);
    EXPECT(amino_commit(), -ENOSYS);
    EXPECT(amino_abort(), -ENOSYS);
    EXPECT(amino_status(text, sizeof text), -ENOSYS);
    EXPECT(amino_status(text, 1), -ENOSYS);
    EXPECT(amino_status(NULL, 0), -ENOSYS);
    EXPECT(amino_suspend(room), -ENOSYS);
    EXPECT(amino_resume(id), -ENOSYS);
    EXPECT(amino_attach(id), -ENOSYS);
    EXPECT(amino_detach(), -ENOSYS);

    EXPECT(amino_status(NULL, 1), -EFAULT);
    EXPECT(amino_suspend(NULL), -EFAULT);
    EXPECT(amino_resume(NULL), -EFAULT);
    EXPECT(amino_attach(NULL), -EFAULT);
    EXPECT(amino_attach("0123456789abcdef0123456789abcde"), -EINVAL);
    EXPECT(amino_resume("\xff"), -EINVAL);

    EXPECT(strcmp(amino_strerror(-ENOSYS), "not running under amino"), 0);
    EXPECT(strcmp(amino_strerror(ENOSYS), "not running under amino"), 0);
    EXPECT(strcmp(amino_strerror(0), "success"), 0);
    EXPECT(strcmp(amino_strerror(INT_MIN), "unknown error"), 0);
    return failed;
}
