// cohive-dht as a part of the program that is all of them: see main.cpp.
#define main cohive_dht_main
#include "../cohive-dht.cpp"
