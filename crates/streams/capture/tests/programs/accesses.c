/* Loads and stores of every size, argv[2] times: 9 instructions each time. */
#include "report.h"

static char buffer[4096] __attribute__((aligned(4096)));

int main(int argc, char **argv)
{
	char *filled = buffer + 256;
	long rounds = atol(argv[2]), bytes = 1000;

	(void)argc;
	report_to(argv[1]);
	report("buffer", buffer);
	__asm__ volatile("1: movb (%1), %%al\n"
			 "movw 8(%1), %%ax\n"
			 "movl 16(%1), %%eax\n"
			 "movq %%rax, 24(%1)\n"
			 "movdqu 32(%1), %%xmm0\n"
			 "lock incq 64(%1)\n"
			 "addl %%eax, 128(%1)\n"
			 "dec %0\n"
			 "jnz 1b\n"
			 : "+c"(rounds) : "r"(buffer) : "rax", "xmm0", "memory");
	/* One instruction, however often it repeats. */
	__asm__ volatile("rep stosb" : "+D"(filled), "+c"(bytes) : "a"(0) : "memory");
	_exit(0);
}
