// cohive-bootstrap as a part of the program that is all of them: see main.cpp.
#define main cohive_bootstrap_main
#include "../cohive-bootstrap.cpp"
